"""A plan carried out by sub-agents: discover, plan, act, evaluate, finish.

Nothing here runs an agent, asks a judge or stores anything: callers pass in what does.
"""

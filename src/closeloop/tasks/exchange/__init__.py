"""Tasks in the formats of others: SWE-bench's JSON lines, Harbor's and terminal-bench's folders."""

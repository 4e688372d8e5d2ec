"""Test suites in the manner of well-known projects, each with a change that repairs its code."""

from __future__ import annotations

from javascript_honest_more import MOCHA_SUITES, NODE_SUITES
from javascript_honest_shop import JEST_ALL, VITEST_ALL, repair

JEST_SUITES = {
    "hooks, inline snapshots, fake timers": repair(
        "jest",
        f"""{JEST_ALL}
        describe('shop', () => {{
          let prices
          beforeEach(() => {{ prices = [1, 2]; jest.useFakeTimers() }})
          afterEach(() => jest.useRealTimers())
          it('adds', () => {{
            expect(total(prices)).toBe(3)
            expect({{ n: total(prices) }}).toMatchInlineSnapshot(`
              {{
                "n": 3,
              }}
            `)
          }})
          it('waits', () => {{
            const seen = jest.fn()
            later([1], (error, sum) => seen(sum))
            jest.advanceTimersByTime(1000)
            expect(seen).toHaveBeenCalledWith(1)
            expect(seen).toHaveBeenCalledTimes(1)
          }})
        }})
        """,
        "shop > adds|shop > waits",
    ),
    "assertions counted, tables, tolerances": repair(
        "jest",
        f"""{JEST_ALL}
        test.each([[[1], 1], [[2, 3], 5]])('adds %j', (prices, want) => {{
          expect.assertions(1)
          expect(total(prices)).toBe(want)
        }})
        test('close', () => {{
          expect(total([1e9])).toBeCloseTo(1e9, 0)
          expect(total([5])).toBeLessThan(5.5)
          expect(() => total(null)).toThrow(TypeError)
          expect(total([3])).toEqual(expect.any(Number))
          expect(total([1e12])).toBeCloseTo(1e12 + 100, -5)
          expect(total([1000])).toBeCloseTo(1200, -4)
          expect([...Array(20000).keys()]).toContain(total([8080]))
        }})
        test('waits', async () => {{
          expect.hasAssertions()
          await expect(load([1])).resolves.toMatchObject({{ total: 1 }})
          await expect(load()).rejects.toThrow('no prices')
        }})
        """,
        "adds [1]|adds [2,3]|close|waits",
    ),
    "spies and a program made by a helper (commander)": repair(
        "jest",
        f"""{JEST_ALL}
        function makeProgram(options = {{}}) {{
          const write = jest.fn()
          return {{ write, parse: (words) => {{ write(`${{total(words.map(Number))}}\\n`) }} }}
        }}
        describe('when prices are given', () => {{
          const writeSpy = jest.spyOn(global.console, 'error').mockImplementation(() => {{}})
          afterEach(() => {{ writeSpy.mockClear() }})
          afterAll(() => {{ writeSpy.mockRestore() }})
          test.each([[['1', '2'], '3\\n'], [['4'], '4\\n']])('then writes %p', (words, text) => {{
            const program = makeProgram()
            expect(() => {{ program.parse(words) }}).not.toThrow()
            expect(program.write).toHaveBeenLastCalledWith(text)
            expect(writeSpy).not.toHaveBeenCalled()
          }})
        }})
        """,
        'when prices are given > then writes ["1", "2"]|when prices are given > then writes ["4"]',
    ),
    "waiting until it holds (testing-library)": repair(
        "jest",
        f"""{JEST_ALL}
        const waitFor = async (check, tries = 50) => {{
          for (;;) {{
            try {{ return check() }} catch (error) {{ if (!tries--) throw error }}
            await new Promise((resolve) => setTimeout(resolve, 2))
          }}
        }}
        const settles = async (check) => waitFor(check)
        test('total', async () => {{
          let sum
          later([1, 2], (error, result) => {{ sum = result }})
          await waitFor(() => expect(sum).toBe(3))
          await settles(() => {{ expect(sum).toBe(3) }})
          expect(sum).toBeGreaterThanOrEqual(3)
          expect(sum).toBeLessThan(4)
        }})
        """,
    ),
    "own matchers, modules loaded anew": repair(
        "jest",
        f"""{JEST_ALL}
        expect.extend({{
          toBeWithin(value, low, high) {{
            return {{ pass: value >= low && value <= high, message: () => `not ${{value}}` }}
          }},
        }})
        afterEach(() => {{ jest.resetModules(); jest.restoreAllMocks() }})
        test('total', () => {{
          expect(total([1, 2])).toBeWithin(3, 3)
          expect(total([1, 2])).not.toBeWithin(4, 9)
          jest.isolateModules(() => {{ expect(require('../src/NAME').total([2])).toBe(2) }})
          const fresh = require('../src/NAME')
          jest.spyOn(fresh, 'total').mockReturnValueOnce(7)
          expect(fresh.total([1])).toBe(7)
          expect(fresh.total([1])).toBe(1)
        }})
        """,
    ),
    "sees its own name": repair(
        "jest",
        f"""{JEST_ALL}
        test('total', () => {{
          expect(expect.getState().currentTestName).toBe('total')
          expect(total([1])).toBe(1)
        }})
        """,
    ),
}
VITEST_SUITES = {
    "state and listeners (redux)": repair(
        "vitest",
        f"""{VITEST_ALL}
        describe('store', () => {{
          test('notifies', () => {{
            const shop = store()
            const first = vi.fn(), second = vi.fn(() => {{}})
            const leave = shop.subscribe(first)
            shop.subscribe(second)
            shop.add(1, 2)
            expect(first).toHaveBeenCalledTimes(1)
            expect(first.mock.calls).toEqual([[3]])
            leave()
            shop.add(4)
            expect(first).toHaveBeenCalledTimes(1)
            expect(second).toHaveBeenNthCalledWith(2, 7)
            expect(shop.getState()).toBe(7)
          }})
        }})
        """,
        "store > notifies",
    ),
    "errors looked at (zod)": repair(
        "vitest",
        f"""{VITEST_ALL}
        test('total', async () => {{
          const result = await load([1, 2])
          expect(result.count > 1).toBe(true)
          if (result.count > 1) {{
            expect(result.total).toEqual(3)
            expect(result.items).toMatchInlineSnapshot(`
              [
                1,
                2,
              ]
            `)
          }}
          try {{
            await load()
            expect.unreachable()
          }} catch (error) {{
            expect(error.code).toEqual('E_NONE')
            expect(error).toBeInstanceOf(RangeError)
          }}
          const refused = () => load()
          await expect(refused).rejects.toThrowError('no prices')
          expect.soft(total([2])).toBe(2)
          await expect.poll(() => total([2])).toBe(2)
          await vi.waitFor(() => {{ expect(total([3])).toBe(3) }})
        }})
        """,
    ),
    "fixtures and cases of a helper (vue)": repair(
        "vitest",
        f"""{VITEST_ALL}
        import {{ assertTotal, prices }} from './NAME_support'
        const it = test.extend({{ cart: async ({{}}, use) => {{ await use(new Cart()) }} }})
        describe.each([['one', [1], 1], ['two', [1, 2], 3]])('cart of %s', (name, given, want) => {{
          it('has a total', ({{ cart }}) => {{
            const seen = vi.fn()
            cart.on('total', seen).add(...given)
            expect(seen.mock.lastCall).toStrictEqual([want])
            assertTotal(total(given), want)
          }})
        }})
        test.for(prices)('adds %o', ([given, want], {{ expect }}) => {{
          expect(total(given)).toBe(want)
        }})
        """,
        "cart of one > has a total|cart of two > has a total",
        support="""import { expect } from 'vitest'
        export const prices = [[[5], 5], [[6], 6]]
        export function assertTotal(actual, want) {
          expect(actual).toBe(want)
          expect(typeof actual).toBe('number')
        }
        """,
    ),
}
HONEST = {
    **{f"jest: {name}": suite for name, suite in JEST_SUITES.items()},
    **{f"vitest: {name}": suite for name, suite in VITEST_SUITES.items()},
    **{f"mocha: {name}": suite for name, suite in MOCHA_SUITES.items()},
    **{f"node: {name}": suite for name, suite in NODE_SUITES.items()},
}
UNCONFIRMED = {title for title in HONEST if "sees its" in title or "must fail" in title}
"""Tests that see their name, or that assertions fail: only a reference confirms such a thing."""

"""More test suites in the manner of well-known projects: those of mocha and of Node."""

from __future__ import annotations

from javascript_forging import MODULE_HEAD
from javascript_honest_shop import CHAI_ALL, MOCHA_ALL, NODE_ALL, repair

MOCHA_SUITES = {
    "this, done, hooks": repair(
        "mocha",
        f"""{MOCHA_ALL}
        describe('shop', function () {{
          this.timeout(60000)
          before(function () {{ this.prices = [1, 2] }})
          it('adds', function () {{ assert.strictEqual(total(this.prices), 3) }})
          it('done', function (done) {{
            later([2], (error, sum) => {{
              if (error) return done(error)
              try {{ assert.equal(sum, 2); done() }} catch (failure) {{ done(failure) }}
            }})
          }})
        }})
        """,
        "shop adds|shop done",
    ),
    "shared behaviour, chained expectations (chai)": repair(
        "mocha",
        f"""{CHAI_ALL}
        const {{ itAddsUp, sumOf }} = require('./NAME_support')
        describe('cart', () => {{
          itAddsUp(total)
          it('emits', (done) => {{
            new Cart().on('total', (sum) => {{ expect(sum).to.equal(3); done() }}).add(1, 2)
          }})
          it('refuses', () => {{
            expect(() => total(null)).to.throw(TypeError).with.property('message')
            return load().then(() => expect.fail(), (error) => {{
              expect(error).to.be.an.instanceof(RangeError).and.have.property('code', 'E_NONE')
            }}).then(() => {{ expect(sumOf(total([1, 1]))).to.be.eql('2').and.not.be.empty }})
          }})
        }})
        """,
        "cart emits|cart refuses",
        support="""const { expect } = require('chai')
        exports.itAddsUp = (total) => {
          for (const [prices, want] of [[[1, 2], 3], [[4], 4]])
            it(`adds ${want}`, () => { expect(total(prices)).to.equal(want) })
        }
        exports.sumOf = (sum) => { expect(sum).to.be.a('number'); return String(sum) }
        """,
    ),
    "answers of a server (express)": repair(
        "mocha",
        f"""{MOCHA_ALL}
        const http = require('http')
        const serve = (prices) => http.createServer((request, response) => {{
          response.setHeader('x-count', prices.length)
          response.end(String(total(prices)))
        }})
        const get = (server, done) => server.listen(0, () => {{
          http.get({{ port: server.address().port }}, (response) => {{
            let text = ''
            response.on('data', (part) => {{ text += part }})
            response.on('end', () => server.close(() => done(response, text)))
          }})
        }})
        function shouldAnswer(prices, want) {{
          return function (done) {{
            get(serve(prices), (response, text) => {{
              assert.strictEqual(response.headers['x-count'], String(prices.length))
              assert.strictEqual(text, want)
              done()
            }})
          }}
        }}
        it('answers', shouldAnswer([1, 2], '3'))
        it('answers nothing', shouldAnswer([], '0'))
        """,
        "answers|answers nothing",
    ),
}
NODE_SUITES = {
    "plans and injected requests (fastify)": repair(
        "node",
        f"""{NODE_ALL}
        test('total', (t, done) => {{
          t.plan(4)
          later([1, 2], (error, sum) => {{
            t.assert.ifError(error)
            t.assert.strictEqual(sum, 3)
            t.assert.deepStrictEqual({{ sum, ok: true }}, {{ sum: 3, ok: true }})
            t.assert.ok(Math.abs(sum - 3) < 0.5)
            done()
          }})
        }})
        """,
    ),
    "subtests, mocks, timers": repair(
        "node",
        f"""{NODE_ALL}
        test('total', async (t) => {{
          const seen = t.mock.fn((prices) => total(prices))
          await t.test('calls', () => {{
            assert.strictEqual(seen([1, 2]), 3)
            assert.deepEqual(seen.mock.calls[0].arguments, [[1, 2]])
            assert.strictEqual(seen.mock.callCount(), 1)
          }})
          await t.test('waits', async (t) => {{
            await assert.rejects(load(), (error) => {{
              assert.equal(error.code, 'E_NONE')
              return true
            }})
            assert.partialDeepStrictEqual?.(await load([1]), {{ total: 1 }})
            assert.throws(() => total(null), {{ name: 'TypeError' }})
          }})
        }})
        """,
        "total|total > calls|total > waits",
    ),
    "assertions that must fail": repair(
        "node",
        f"""{NODE_ALL}
        const failureOf = (run) => {{ try {{ run() }} catch (error) {{ return error }} }}
        const again = (run) => {{ try {{ return run() }} catch {{ return run() }} }}
        function same(actual, want) {{ assert.equal(actual, want) }}
        test('total', () => {{
          assert.match(failureOf(() => {{ assert.equal(total([1]), 99) }}).message, /99/)
          assert.throws(() => same(total([1]), 99), assert.AssertionError)
          let tries = 0
          again(() => {{ tries++; assert.equal(total([tries]), 2) }})
          assert.equal(total([tries]), 2)
        }})
        """,
    ),
    "tables of cases (semver)": repair(
        "node",
        f"""{MODULE_HEAD}
        import * as support from './NAME_support.mjs'
        for (const [prices, want] of support.CASES) {{
          test(`adds ${{prices.length}}`, async () => {{
            support.compare(total(prices), want)
            await support.compareLater(Promise.resolve(total(prices)), want)
          }})
        }}
        """,
        "adds 1|adds 2",
        support="""import assert, { deepStrictEqual as same } from 'node:assert/strict'
        export const CASES = [[[1], 1], [[1, 2], 3]]
        export function compare(actual, want) {
          assert(actual === want, 'not equal')
          same(actual, want)
        }
        export const compareLater = async (actual, want) => same(await actual, want)
        """,
        is_module=True,
    ),
    "sees its own file and line": repair(
        "node",
        f"""{NODE_ALL}
        const path = require('node:path')
        test('total', (t) => {{
          assert.equal(path.basename(__filename), 'NAME.test.js')
          assert.match(new Error().stack.split('\\n')[1], /NAME\\.test\\.js/)
          assert.equal(t.name, 'total')
          assert.equal(total([1, 2]), 3)
        }})
        """,
    ),
}

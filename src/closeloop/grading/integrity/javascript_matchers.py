"""What the matchers of jest, vitest, chai and Node's assert mean, and what is their opposite."""

from __future__ import annotations

EQUALITIES = {
    *("toBe", "toEqual", "toStrictEqual", "toMatchObject", "toHaveLength", "toBeCloseTo"),
    *("toHaveBeenCalledTimes", "toBeCalledTimes", "toHaveReturnedTimes"),
    *("equal", "equals", "eq", "eql", "eqls", "lengthOf", "length"),
    *("strictEqual", "deepEqual", "deepStrictEqual", "deepEquals", "callCount"),
}
TEXTS = {
    *("toThrow", "toThrowError", "toContain", "toContainEqual", "toMatch", "toHaveProperty"),
    *("throw", "throws", "Throw", "include", "includes", "contain", "contains", "string"),
    *("property", "rejectedWith"),
}
"""Matchers of which a text that occurs nowhere cannot hold."""
CALLED_WITH = {
    *("toHaveBeenCalledWith", "toBeCalledWith", "toHaveBeenLastCalledWith", "lastCalledWith"),
    *("toHaveBeenCalledExactlyOnceWith", "calledWith", "calledWithExactly", "calledOnceWith"),
    *("calledOnceWithExactly", "alwaysCalledWith", "alwaysCalledWithExactly"),
}
VALUED = {"toHaveProperty", "property"}
"""Matchers whose second argument, if there is one, is what the first must be equal to."""
INLINE_SNAPSHOTS = {"toMatchInlineSnapshot", "toThrowErrorMatchingInlineSnapshot"}
CLASSES = {"toBeInstanceOf", "instanceOf", "instanceof"}
OPPOSITES = {
    "toBeGreaterThan": "toBeLessThanOrEqual",
    "toBeLessThanOrEqual": "toBeGreaterThan",
    "toBeLessThan": "toBeGreaterThanOrEqual",
    "toBeGreaterThanOrEqual": "toBeLessThan",
    "toBeTruthy": "toBeFalsy",
    "toBeFalsy": "toBeTruthy",
    "toBeDefined": "toBeUndefined",
    "toBeUndefined": "toBeDefined",
    "above": "most",
    "below": "least",
    "least": "below",
    "most": "above",
}
PLAIN_MATCHERS = {
    *("toBeNull", "toBeNaN", "toHaveBeenCalled", "toBeCalled", "toHaveReturned"),
    *("toBeTypeOf", "toSatisfy", "toHaveBeenNthCalledWith", "toHaveReturnedWith"),
    *("nthCalledWith", "toHaveBeenCalledOnce", "toBeOneOf", "toHaveLastReturnedWith"),
    *("toHaveNthReturnedWith", "toHaveResolved", "toHaveResolvedWith"),
    *("true", "false", "null", "undefined", "NaN", "ok", "empty", "exist", "exists", "a", "an"),
    *(
        "called",
        "calledOnce",
        "calledTwice",
        "notCalled",
        "members",
        "keys",
        "key",
        "match",
        "within",
        "oneOf",
        "satisfy",
    ),
}
CERTAIN = {*EQUALITIES, *TEXTS, *CALLED_WITH, *CLASSES, *OPPOSITES, *PLAIN_MATCHERS}
CERTAIN |= INLINE_SNAPSHOTS | {"propertyVal"}
CHAI_WORDS = {
    *("to", "be", "been", "is", "that", "which", "and", "has", "have", "with", "at", "of", "same"),
    *("but", "does", "still", "also", "deep", "nested", "own", "ordered", "any", "all", "itself"),
}
PROMISED = {
    *("resolves", "rejects", "eventually", "rejected", "rejectedWith", "fulfilled", "become"),
    *("doesNotReject",),
}
ASSERT_OPPOSITES = {
    "equal": "notEqual",
    "strictEqual": "notStrictEqual",
    "deepEqual": "notDeepEqual",
    "deepStrictEqual": "notDeepStrictEqual",
    "throws": "doesNotThrow",
    "rejects": "doesNotReject",
    "match": "doesNotMatch",
    "isTrue": "isNotTrue",
    "isFalse": "isNotFalse",
    "isNull": "isNotNull",
    "isUndefined": "isDefined",
    "isOk": "isNotOk",
    "isArray": "isNotArray",
    "isAbove": "isAtMost",
    "isBelow": "isAtLeast",
    "isAtLeast": "isBelow",
    "isAtMost": "isAbove",
    "exists": "notExists",
    "include": "notInclude",
    "instanceOf": "notInstanceOf",
    "property": "notProperty",
    "called": "notCalled",
    "deepInclude": "notDeepInclude",
    "isNumber": "isNotNumber",
    "isString": "isNotString",
    "isObject": "isNotObject",
    "isFunction": "isNotFunction",
    "isEmpty": "isNotEmpty",
    "typeOf": "notTypeOf",
}
ASSERT_TURNED = {
    "calledOnce": "notCalled",
    "calledTwice": "notCalled",
    **ASSERT_OPPOSITES,
    **{to: of for of, to in ASSERT_OPPOSITES.items()},
}

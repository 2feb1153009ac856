"""The filter and priority language: text to a tree, a tree to a function over headers.

    expr  := or ; or := and (OR and)* ; and := not (AND not)* ; not := [NOT] prim
    prim  := '(' expr ')' | TRUE | FALSE | EXISTS '(' name ')'
           | name = <> < <= > >= ('text' | number) | name [NOT] IN ('text', ...)
           | name [NOT] LIKE 'pattern' [ESCAPE 'c'] | name [NOT] BETWEEN number AND number
           | name STARTS WITH 'text' | name ENDS WITH 'text' | name IS [NOT] NULL
    rules := RULES '(' expr '->' (0..254 | HEADER), ... [, DEFAULT n] ')'
    name  := a bare word or "quoted"

Headers are text. Text compares by code point (the order of UTF-8 bytes). Where the other side is a
number, the header is read as a signed 64-bit decimal. A missing header, or one that is no number,
gives UNKNOWN; NOT UNKNOWN is UNKNOWN; only TRUE matches. In a LIKE pattern % is any text and _ any
one character. There is no arithmetic and no regular expression, so the cost of a match is at most
the size of the filter times the size of the headers; a `Budget` bounds that too.

RULES give a priority by the first rule that is true: its number, or for HEADER the header
`priority` where that is 0 to 254, else the default. Lower is served first.
"""

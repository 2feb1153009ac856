"""The API as methods of both clients, one module a resource; none does I/O.

A function of a module returns a `Call`, which is a request and the function that reads its answer;
a method returns the steps to its result, which each client takes in its own way.
"""

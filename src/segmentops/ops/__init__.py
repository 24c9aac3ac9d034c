# SPDX-License-Identifier: Apache-2.0
"""Every operation, once, free of any framework. Nothing here imports anything else of this package.

table     the operations: operands, results, adjoints, public names
calculus  what follows: transposes, tangents, programs of gradients, which calls a sum of terms is
formulas  the norms, over a namespace of operations
abi       what follows for native code: dtypes, names of functions, arguments, tables
check     what arrays must have to be arguments

To add an operation, add a row to the table.
"""

"""Drop-ins for other libraries: a program written for one of them runs after changing its import.

Nothing in pyengine imports this folder. Each drop-in keeps the other library's names, arguments, defaults and
answers; what we cannot do is refused by name or warned about once, never silently different.
"""

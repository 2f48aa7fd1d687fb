"""Who waits for the GIL and who holds it, seen from outside: no ptrace, no stop, no code in the target.

`memory` reads the target, `elf` and `layout` find its GIL, `tasks` tells what each thread is blocked on, `names` and
`frames` put words to threads and holders, `sampler` makes a row a tick of it, `recorder` runs it beside a cell.
"""

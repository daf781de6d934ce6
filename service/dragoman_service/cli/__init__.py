"""Commands of `dragoman` that start a server or operate a running one."""

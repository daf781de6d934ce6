"""Ten times what the server can do, offered for a while: does it say no early and usefully?"""

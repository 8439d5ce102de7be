"""Networks that score tokens: the interface, and the implementations a checkpoint's description selects."""

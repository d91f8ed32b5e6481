// A pin only names a crate and its checksum; nothing is compiled.

//! The one command for people: everything on one machine, signatures, a terminal chat, and the columns of kubectl.

pub mod up;

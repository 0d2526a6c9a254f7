//! Artifacts, signatures and trust, over real files and over signatures that the Python implementation of the format made.

mod chains;
mod damage;
mod fixture;
mod opening;
mod peer;
mod signatures;
mod trust;

//! Doubly linked lists through arrays: every operation is O(1) and none allocates.

/// No neighbour, no member.
pub(crate) const NONE: u32 = u32::MAX;

/// The links of every possible member; a member is in at most one list over the same links.
#[derive(Default)]
pub(crate) struct Links {
    prev: Vec<u32>,
    next: Vec<u32>,
}

impl Links {
    pub(crate) fn with_len(len: usize) -> Self {
        Self {
            prev: vec![NONE; len],
            next: vec![NONE; len],
        }
    }

    /// Room for one more member.
    pub(crate) fn grow(&mut self) {
        self.prev.push(NONE);
        self.next.push(NONE);
    }

    pub(crate) fn next(&self, member: u32) -> u32 {
        self.next[member as usize]
    }
}

/// One list; its members' links live in a [`Links`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    pub(crate) const fn new() -> Self {
        Self {
            head: NONE,
            tail: NONE,
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first member, or [`NONE`].
    pub(crate) fn head(&self) -> u32 {
        self.head
    }

    pub(crate) fn push_back(&mut self, links: &mut Links, member: u32) {
        self.insert_before(links, NONE, member);
    }

    /// Inserts before `at`; at the end when `at` is [`NONE`].
    pub(crate) fn insert_before(&mut self, links: &mut Links, at: u32, member: u32) {
        let before = if at == NONE {
            self.tail
        } else {
            links.prev[at as usize]
        };
        links.prev[member as usize] = before;
        links.next[member as usize] = at;
        match before {
            NONE => self.head = member,
            before => links.next[before as usize] = member,
        }
        match at {
            NONE => self.tail = member,
            at => links.prev[at as usize] = member,
        }
        self.len += 1;
    }

    /// Removes a member, which must be in this list.
    pub(crate) fn remove(&mut self, links: &mut Links, member: u32) {
        let (before, after) = (links.prev[member as usize], links.next[member as usize]);
        match before {
            NONE => {
                assert!(self.head == member, "removed a stranger from a list");
                self.head = after;
            }
            before => links.next[before as usize] = after,
        }
        match after {
            NONE => self.tail = before,
            after => links.prev[after as usize] = before,
        }
        links.prev[member as usize] = NONE;
        links.next[member as usize] = NONE;
        self.len -= 1;
    }

    pub(crate) fn pop_front(&mut self, links: &mut Links) -> Option<u32> {
        let member = self.head;
        if member == NONE {
            return None;
        }
        self.remove(links, member);
        Some(member)
    }
}

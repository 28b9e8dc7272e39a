//! A reader of FlatBuffers, in which Arrow writes the headers of its messages.

/// A table of FlatBuffers: the fields by their slots. Nothing is found outside of `bytes`.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Table<'a> {
    pub(super) fn root(bytes: &'a [u8]) -> Option<Self> {
        Self { bytes, at: 0 }.behind(0)
    }

    fn read<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.bytes.get(at..at.checked_add(N)?)?.try_into().ok()
    }

    /// The place to which the offset at `at` leads.
    fn target(&self, at: usize) -> Option<usize> {
        at.checked_add(u32::from_le_bytes(self.read(at)?) as usize)
    }

    fn behind(&self, at: usize) -> Option<Self> {
        Some(Self { at: self.target(at)?, ..*self })
    }

    /// Where the field in `slot` stands; none where it has its default.
    fn slot(&self, slot: usize) -> Option<usize> {
        let back = i64::from(i32::from_le_bytes(self.read(self.at)?));
        let offsets = usize::try_from(i64::try_from(self.at).ok()? - back).ok()?;
        let size = usize::from(u16::from_le_bytes(self.read(offsets)?));
        let entry = 4 + 2 * slot;
        let field = if entry + 2 <= size { u16::from_le_bytes(self.read(offsets + entry)?) } else { 0 };
        (field != 0).then(|| self.at + usize::from(field))
    }

    pub(super) fn byte(&self, slot: usize) -> Option<u8> {
        self.read(self.slot(slot)?).map(|[byte]| byte)
    }

    pub(super) fn short(&self, slot: usize) -> Option<i16> {
        self.read(self.slot(slot)?).map(i16::from_le_bytes)
    }

    pub(super) fn int(&self, slot: usize) -> Option<i32> {
        self.read(self.slot(slot)?).map(i32::from_le_bytes)
    }

    pub(super) fn long(&self, slot: usize) -> Option<i64> {
        self.read(self.slot(slot)?).map(i64::from_le_bytes)
    }

    pub(super) fn table(&self, slot: usize) -> Option<Self> {
        self.behind(self.slot(slot)?)
    }

    /// Where the elements of the vector in `slot` begin, and how many there are, each of `size`
    /// bytes.
    fn vector(&self, slot: usize, size: usize) -> Option<(usize, usize)> {
        let at = self.target(self.slot(slot)?)?;
        let len = u32::from_le_bytes(self.read(at)?) as usize;
        (len <= self.bytes.len() / size).then_some((at + 4, len))
    }

    pub(super) fn text(&self, slot: usize) -> Option<&'a str> {
        let (at, len) = self.vector(slot, 1)?;
        std::str::from_utf8(self.bytes.get(at..at.checked_add(len)?)?).ok()
    }

    pub(super) fn tables(self, slot: usize) -> Option<impl Iterator<Item = Option<Self>>> {
        let (at, len) = self.vector(slot, 4)?;
        Some((0..len).map(move |index| self.behind(at + 4 * index)))
    }

    /// A vector of two numbers each.
    pub(super) fn pairs(self, slot: usize) -> Option<impl Iterator<Item = (i64, i64)>> {
        let (at, len) = self.vector(slot, 16)?;
        let number = move |at| self.read(at).map(i64::from_le_bytes);
        Some((0..len).map_while(move |index| Some((number(at + 16 * index)?, number(at + 16 * index + 8)?))))
    }
}

//! The digest of a dataset: SHA-256 over every example, in order, whatever file it comes from and
//! however that keeps it. So a run that is continued knows its data again, and a change of one id
//! or label anywhere is seen.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Result;
use crate::files::hex;
use crate::signals;
use sha2::{Digest, Sha256};

use super::{Dataset, Example, Fingerprint, Label};

/// Examples are hashed in groups of so many, on all cores, and then the digests of the groups in
/// order.
const GROUP: usize = 4096;

/// SHA-256 over all examples of `data`, in hexadecimal digits; of a stream, [its
/// own](super::Stream::digest).
///
/// # Errors
/// Data that cannot be read; a signal.
pub fn digest<E: Fingerprint>(data: &dyn Dataset<E>) -> Result<String> {
    if let Some(stream) = data.stream() {
        return Ok(stream.digest());
    }
    let (next, groups) = (AtomicUsize::new(0), data.len().div_ceil(GROUP));
    let work = || {
        let mut done = Vec::new();
        loop {
            let group = next.fetch_add(1, Ordering::Relaxed);
            if group >= groups {
                return Ok(done);
            }
            if let Some(signal) = signals::received() {
                return Err(signal.error("stopped before the first step"));
            }
            let mut hash = Sha256::new();
            for index in group * GROUP..((group + 1) * GROUP).min(data.len()) {
                data.hash_example(index, &mut hash)?;
            }
            done.push((group, hash.finalize()));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(groups);
    let found = std::thread::scope(|scope| {
        let others = (1..threads).map(|_| scope.spawn(work)).collect::<Vec<_>>();
        let own = work();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|payload| std::panic::resume_unwind(payload))
        };
        others.into_iter().map(join).chain([own]).collect::<Result<Vec<_>>>()
    });
    let mut found = found?.concat();
    found.sort_unstable_by_key(|(group, _)| *group);
    let mut hash = Sha256::new_with_prefix((data.len() as u64).to_le_bytes());
    found.iter().for_each(|(_, of_group)| hash.update(of_group));
    Ok(hex(&hash.finalize()))
}

impl Fingerprint for Example {
    fn hash_into(&self, hash: &mut Sha256) {
        let mut bytes = (self.input_ids.len() as u64).to_le_bytes().to_vec();
        // Most ids fit into 16 bits, and hashing is most of the work.
        let numbers = |bytes: &mut Vec<u8>, numbers: &[i32]| {
            let width = if numbers.iter().all(|number| u16::try_from(*number).is_ok()) { 2 } else { 4 };
            bytes.reserve(1 + numbers.len() * width);
            bytes.push(width as u8);
            numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()[..width]));
        };
        numbers(&mut bytes, &self.input_ids);
        bytes.push(u8::from(self.attention_mask.is_some()));
        bytes.extend(self.attention_mask.iter().flatten().map(|attended| u8::from(*attended)));
        bytes.push(u8::from(self.token_type_ids.is_some()));
        numbers(&mut bytes, self.token_type_ids.as_deref().unwrap_or_default());
        if let Some(positions) = &self.position_ids {
            bytes.push(2);
            numbers(&mut bytes, positions);
        }
        match &self.label {
            Label::None => bytes.push(0),
            // The most frequent case by far, and twice the work: the label of a causal model is its
            // text.
            Label::Tokens(labels) if *labels == self.input_ids => bytes.push(1),
            Label::Tokens(labels) => {
                bytes.push(2);
                numbers(&mut bytes, labels);
            }
            Label::Class(class) => {
                bytes.push(3);
                numbers(&mut bytes, &[*class]);
            }
            Label::Value(value) => {
                bytes.push(4);
                bytes.extend(value.to_le_bytes());
            }
            Label::Multi(values) => {
                bytes.push(6);
                bytes.extend((values.len() as u64).to_le_bytes());
                bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
            Label::Choice { lens, answer } => {
                bytes.push(7);
                bytes.extend((lens.len() as u64).to_le_bytes());
                bytes.extend(lens.iter().flat_map(|len| (*len as u64).to_le_bytes()));
                numbers(&mut bytes, &[*answer]);
            }
            Label::Span { start, end } => {
                bytes.push(5);
                numbers(&mut bytes, &[*start, *end]);
            }
        }
        hash.update(&bytes);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    struct Examples(Vec<Example>);

    impl Dataset for Examples {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn get(&self, index: usize, _epoch: u64) -> Result<Example> {
            Ok(self.0[index].clone())
        }
        fn len_of(&self, index: usize) -> usize {
            self.0[index].input_ids.len()
        }
        fn max_len(&self) -> usize {
            8
        }
    }

    fn example(id: i32) -> Example {
        Example {
            input_ids: vec![id, 2, 3],
            attention_mask: None,
            token_type_ids: None,
            position_ids: None,
            label: Label::Class(1),
        }
    }

    fn of(examples: &[Example]) -> String {
        digest(&Examples(examples.to_vec())).unwrap()
    }

    #[test]
    fn any_change_of_any_example_is_seen() {
        let all = (0..3 * GROUP as i32 + 7).map(example).collect::<Vec<_>>();
        let whole = of(&all);
        assert_eq!((whole.len(), &whole), (64, &of(&all)));
        let changes: [fn(&mut Example); 6] = [
            |example| example.input_ids[2] += 1,
            |example| example.input_ids.push(0),
            |example| example.label = Label::Class(2),
            |example| example.label = Label::Value(f32::from_bits(1)),
            |example| example.attention_mask = Some(vec![true; 3]),
            |example| example.token_type_ids = Some(vec![0; 3]),
        ];
        let mut seen = vec![whole.clone(), of(&all[1..]), of(&all[..all.len() - 1])];
        for at in [0, 1, GROUP, all.len() - 1] {
            for change in changes {
                let mut changed = all.clone();
                change(&mut changed[at]);
                seen.push(of(&changed));
            }
        }
        let mut swapped = all.clone();
        swapped.swap(5, 6);
        seen.push(of(&swapped));
        let distinct = seen.iter().collect::<std::collections::BTreeSet<_>>().len();
        assert_eq!(distinct, seen.len());
    }
}

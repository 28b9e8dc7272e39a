//! Packing: several documents in one block, so that little of a batch is padding. Attention and
//! positions of a document are those that it has alone: its positions begin at 0, which is where
//! the model sees that another document begins.

use std::collections::BTreeMap;
use std::sync::Arc;

use kiln_core::error::Result;

use crate::{Dataset, Example, IGNORED, Label};

/// Blocks of the examples of another dataset.
pub struct Packed {
    data: Arc<dyn Dataset>,
    /// The examples of each block.
    blocks: Vec<Vec<usize>>,
    /// Tokens of each block.
    lens: Vec<usize>,
}

impl Packed {
    /// Packs the examples of `data` into blocks of at most `max_length` tokens, none of them
    /// longer: the longest first, each into the fullest block that has room for it (best fit
    /// decreasing, TRL's `packing_strategy = "bfd"`).
    pub fn new(data: Arc<dyn Dataset>, max_length: usize) -> Self {
        let mut order = (0..data.len()).map(|index| (data.len_of(index), index)).collect::<Vec<_>>();
        order.sort_by_key(|(len, index)| (std::cmp::Reverse(*len), *index));
        let (mut blocks, mut lens) = (Vec::<Vec<usize>>::new(), Vec::<usize>::new());
        // Blocks by the tokens that they have room for; the last of a list was put there last.
        let mut room = BTreeMap::<usize, Vec<usize>>::new();
        for (len, index) in order {
            let fits = room.range(len..).next().map(|(left, _)| *left);
            let (block, left) = match fits {
                Some(left) => {
                    let of_size = room.get_mut(&left).expect("the range is of this map");
                    let block = of_size.pop().expect("a list that gets empty is removed");
                    if of_size.is_empty() {
                        room.remove(&left);
                    }
                    (block, left)
                }
                None => {
                    blocks.push(Vec::new());
                    lens.push(0);
                    (blocks.len() - 1, max_length)
                }
            };
            blocks[block].push(index);
            lens[block] += len;
            room.entry(left.saturating_sub(len)).or_default().push(block);
        }
        Self { data, blocks, lens }
    }
}

impl Dataset for Packed {
    fn len(&self) -> usize {
        self.blocks.len()
    }

    fn get(&self, index: usize, epoch: u64) -> Result<Example> {
        let (mut input_ids, mut positions, mut labels) = (Vec::new(), Vec::new(), Vec::new());
        for document in &self.blocks[index] {
            let example = self.data.get(*document, epoch)?;
            let begin = labels.len();
            positions.extend(0..example.input_ids.len() as i32);
            match example.label {
                Label::Tokens(own) => labels.extend(own),
                _ => labels.extend_from_slice(&example.input_ids),
            }
            // Nothing before it predicts the first token of a document.
            labels[begin] = IGNORED;
            input_ids.extend(example.input_ids);
        }
        let label = Label::Tokens(labels);
        Ok(Example { input_ids, attention_mask: None, token_type_ids: None, position_ids: Some(positions), label })
    }

    fn len_of(&self, index: usize) -> usize {
        self.lens[index]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    struct Lengths(Vec<usize>);

    impl Dataset for Lengths {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn get(&self, index: usize, _epoch: u64) -> Result<Example> {
            let input_ids = vec![index as i32; self.0[index]];
            let label = Label::Tokens(input_ids.clone());
            Ok(Example { input_ids, attention_mask: None, token_type_ids: None, position_ids: None, label })
        }
        fn len_of(&self, index: usize) -> usize {
            self.0[index]
        }
    }

    #[test]
    fn every_document_is_in_one_block_and_no_block_is_too_long() {
        let packed = Packed::new(Arc::new(Lengths(vec![3, 7, 2, 5, 8, 1, 4])), 8);
        let blocks = (0..packed.len()).map(|index| packed.get(index, 0).unwrap()).collect::<Vec<_>>();
        assert_eq!(packed.len(), 4, "30 tokens fill four blocks of 8 but for two");
        let mut seen = blocks.iter().flat_map(|block| block.input_ids.clone()).collect::<Vec<_>>();
        seen.sort_unstable();
        let expected = [3, 7, 2, 5, 8, 1, 4].iter().enumerate().flat_map(|(index, len)| vec![index as i32; *len]);
        assert_eq!(seen, expected.collect::<Vec<_>>());
        for (index, block) in blocks.iter().enumerate() {
            assert_eq!((block.input_ids.len(), block.input_ids.len() <= 8), (packed.len_of(index), true));
            let (Some(positions), Label::Tokens(labels)) = (&block.position_ids, &block.label) else {
                panic!("{block:?}")
            };
            for (place, position) in positions.iter().enumerate() {
                let begins = place == 0 || block.input_ids[place] != block.input_ids[place - 1];
                assert_eq!(*position == 0, begins);
                assert_eq!(labels[place], if begins { IGNORED } else { block.input_ids[place] });
            }
        }
    }
}

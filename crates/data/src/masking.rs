//! Masked language modelling (Devlin et al. 2018), by the rules of `transformers`'
//! `DataCollatorForLanguageModeling`: a share of the tokens, never a special one, is to be
//! predicted; of these 80 % become the mask token, 10 % a random token, and 10 % stay. The draws
//! are a pure function of seed, epoch, example and position, so every epoch masks anew and a
//! resumed run masks as the uninterrupted run would have.
//!
//! Two things differ from the collator, both on purpose. An example in which nothing was drawn gets
//! one word, so that no batch is without a label. And a whole word is a token with the pieces that
//! continue it (`##`, or no space before it), as in BERT's original code; the collator tells words
//! by gaps in the text, so that `word,` is one.

use std::ops::Range;
use std::sync::Arc;

use kiln_core::dataset::Stream;
use kiln_core::error::{Error, Result};
use kiln_core::random::{seed_for, uniform};
use sha2::{Digest, Sha256};

use super::tokenizer::Tokenizer;
use super::{Dataset, Example, Label};
use crate::IGNORED;

/// Share of the tokens to predict that become the mask token.
const MASK_SHARE: f64 = 0.8;

/// Share of the tokens to predict that become a random token.
const RANDOM_SHARE: f64 = 0.1;

/// Masks the tokens of one tokenizer.
#[derive(Debug, Clone)]
pub struct Masking {
    probability: f64,
    mask_id: i32,
    /// The role of each id.
    kinds: Vec<Kind>,
}

/// The role of an id in masking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Never masked.
    Special,
    /// Masked with its own chance.
    Start,
    /// Masked when the start of its word is.
    Continuation,
}

impl Masking {
    /// Masks tokens of `tokenizer` with the chance `probability`; with `whole_words`, all pieces of
    /// a word together.
    ///
    /// # Errors
    /// A tokenizer without a mask token, or with `whole_words` one whose pieces do not tell words.
    pub fn new(tokenizer: &Tokenizer, probability: f64, whole_words: bool) -> Result<Self> {
        let Some(mask_id) = tokenizer.mask_id() else {
            return Err(Error::config("data.task = \"mlm\": the tokenizer has no mask token ([MASK] or <mask>)")
                .help("use the tokenizer of a masked language model, such as BERT's"));
        };
        let mut kinds = vec![Kind::Start; tokenizer.vocab_size()];
        if whole_words {
            let continuations = tokenizer.continuations().ok_or_else(|| {
                Error::config("data.whole_word_mask = true: the tokens of this tokenizer do not tell where words begin")
                    .help("word pieces and byte-level BPE do; or set data.whole_word_mask = false")
            })?;
            for (kind, _) in kinds.iter_mut().zip(continuations).filter(|(_, continues)| *continues) {
                *kind = Kind::Continuation;
            }
        }
        for id in tokenizer.special_ids() {
            kinds[id as usize] = Kind::Special;
        }
        Ok(Self { probability, mask_id: mask_id as i32, kinds })
    }

    /// Masks `ids` in place, with draws that depend on `key` alone; the labels, -100 where nothing
    /// is predicted.
    fn apply(&self, ids: &mut [i32], key: u64) -> Vec<i32> {
        let draw = |position: usize, which: u64| uniform(seed_for(key, "token", position as u64, which));
        let words = self.words(ids);
        let mut chosen =
            (0..words.len()).filter(|word| draw(words[*word].start, 0) < self.probability).collect::<Vec<_>>();
        if chosen.is_empty() && !words.is_empty() {
            chosen.push((draw(ids.len(), 0) * words.len() as f64) as usize);
        }
        let mut labels = vec![IGNORED; ids.len()];
        for position in chosen.into_iter().flat_map(|word| words[word].clone()) {
            labels[position] = ids[position];
            let fate = draw(position, 1);
            if fate < MASK_SHARE {
                ids[position] = self.mask_id;
            } else if fate < MASK_SHARE + RANDOM_SHARE {
                ids[position] = (draw(position, 2) * self.kinds.len() as f64) as i32;
            }
        }
        labels
    }

    /// The positions of each word. One that begins in an earlier block begins here with its first
    /// piece.
    fn words(&self, ids: &[i32]) -> Vec<Range<usize>> {
        let mut words: Vec<Range<usize>> = Vec::new();
        for (position, id) in ids.iter().enumerate() {
            match (self.kinds[*id as usize], words.last_mut()) {
                (Kind::Special, _) => {}
                (Kind::Continuation, Some(word)) if word.end == position => word.end += 1,
                _ => words.push(position..position + 1),
            }
        }
        words
    }
}

/// Another dataset, masked.
pub struct Masked {
    data: Arc<dyn Dataset>,
    masking: Arc<Masking>,
    seed: u64,
}

impl Masked {
    /// The examples of `data` under `masking`. Their own labels are dropped.
    pub fn new(data: Arc<dyn Dataset>, masking: Arc<Masking>, seed: u64) -> Self {
        Self { data, masking, seed }
    }

    /// The examples that are masked.
    pub(super) fn inner(&self) -> &dyn Dataset {
        &*self.data
    }
}

impl Dataset for Masked {
    fn len(&self) -> usize {
        self.data.len()
    }

    fn get(&self, index: usize, epoch: u64) -> Result<Example> {
        let mut example = self.data.get(index, epoch)?;
        let key = seed_for(self.seed, "mask", epoch, index as u64);
        example.label = Label::Tokens(self.masking.apply(&mut example.input_ids, key));
        Ok(example)
    }

    /// Hashes the examples and the settings of masking. The draws are left out because they follow
    /// from seed and epoch.
    fn hash_example(&self, index: usize, hash: &mut Sha256) -> Result<()> {
        if index == 0 {
            let Masking { probability, mask_id, kinds } = &*self.masking;
            hash.update(probability.to_le_bytes());
            hash.update(mask_id.to_le_bytes());
            hash.update(kinds.iter().map(|kind| *kind as u8).collect::<Vec<_>>());
        }
        self.data.hash_example(index, hash)
    }

    fn len_of(&self, index: usize) -> usize {
        self.data.len_of(index)
    }

    fn max_len(&self) -> usize {
        self.data.max_len()
    }

    fn stream(&self) -> Option<&dyn Stream> {
        self.data.stream()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const PIECES: [&str; 9] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "##s", "film"];

    fn tokenizer() -> Tokenizer {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("vocab.txt"), PIECES.join("\n")).unwrap();
        Tokenizer::load(folder.path()).unwrap()
    }

    /// `[CLS] play ##ing film play ##s ##s [SEP]`, as often as asked.
    struct Text(usize);

    const IDS: [i32; 8] = [2, 5, 6, 8, 5, 7, 7, 3];

    impl Dataset for Text {
        fn len(&self) -> usize {
            self.0
        }
        fn get(&self, _: usize, _: u64) -> Result<Example> {
            let input_ids = IDS.repeat(16);
            Ok(Example {
                input_ids,
                attention_mask: None,
                token_type_ids: None,
                position_ids: None,
                label: Label::None,
            })
        }
        fn len_of(&self, _: usize) -> usize {
            IDS.len() * 16
        }
        fn max_len(&self) -> usize {
            IDS.len() * 16
        }
    }

    fn masked(whole_words: bool, probability: f64) -> Masked {
        let masking = Masking::new(&tokenizer(), probability, whole_words).unwrap();
        Masked::new(Arc::new(Text(500)), Arc::new(masking), 7)
    }

    fn labels(example: &Example) -> &[i32] {
        let Label::Tokens(labels) = &example.label else { panic!("labels expected") };
        labels
    }

    #[test]
    fn shares_are_15_and_80_10_10_and_specials_stay() {
        let data = masked(false, 0.15);
        let (mut maskable, mut chosen, mut mask, mut same) = (0, 0, 0, 0);
        for index in 0..500 {
            let example = data.get(index, 0).unwrap();
            for ((id, label), original) in example.input_ids.iter().zip(labels(&example)).zip(IDS.repeat(16)) {
                if [2, 3].contains(&original) {
                    assert_eq!((*id, *label), (original, IGNORED));
                    continue;
                }
                maskable += 1;
                if *label == IGNORED {
                    assert_eq!(*id, original);
                    continue;
                }
                assert_eq!(*label, original);
                chosen += 1;
                mask += i32::from(*id == 4);
                same += i32::from(*id == original);
            }
        }
        // 48,000 tokens, of which 7,200 are chosen. Random ones, 10 %, are the mask or the token
        // itself once in nine each. Bounds are 5 standard deviations.
        assert_eq!(maskable, 48_000);
        let near = |count: i32, of: i32, share: f64| {
            let (expected, deviation) = (f64::from(of) * share, (f64::from(of) * share * (1.0 - share)).sqrt());
            assert!((f64::from(count) - expected).abs() < 5.0 * deviation, "{count} of {of}, expected {expected}");
        };
        near(chosen, maskable, 0.15);
        near(mask, chosen, 0.8 + 0.1 / 9.0);
        near(same, chosen, 0.1 + 0.1 / 9.0);
    }

    #[test]
    fn whole_words_are_chosen_together() {
        let data = masked(true, 0.15);
        let (mut words, mut chosen) = (0, 0);
        for index in 0..200 {
            let example = data.get(index, 0).unwrap();
            for labels in labels(&example).chunks(8) {
                for word in [1..3, 3..4, 4..7] {
                    let any = labels[word.clone()].iter().any(|label| *label != IGNORED);
                    assert!(labels[word].iter().all(|label| (*label != IGNORED) == any), "{labels:?}");
                    words += 1;
                    chosen += i32::from(any);
                }
            }
        }
        assert_eq!(words, 9600);
        assert!((chosen - 1440).abs() < 175, "{chosen}: 15 % of the words, within 5 standard deviations");
    }

    #[test]
    fn epochs_examples_and_seeds_differ_and_repeat() {
        let get = |seed, index, epoch| {
            let masking = Masking::new(&tokenizer(), 0.15, false).unwrap();
            Masked::new(Arc::new(Text(9)), Arc::new(masking), seed).get(index, epoch).unwrap()
        };
        assert_eq!(get(1, 0, 0), get(1, 0, 0));
        for other in [get(1, 0, 1), get(1, 1, 0), get(2, 0, 0)] {
            assert_ne!(labels(&get(1, 0, 0)), labels(&other));
        }
    }

    #[test]
    fn something_is_always_predicted() {
        let data = masked(false, 1e-9);
        for index in 0..50 {
            let example = data.get(index, 0).unwrap();
            assert_eq!(labels(&example).iter().filter(|label| **label != IGNORED).count(), 1);
        }
    }

    #[test]
    fn a_tokenizer_without_a_mask_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("vocab.txt"), "[UNK]\n[CLS]\n[SEP]\na\n").unwrap();
        let tokenizer = Tokenizer::load(folder.path()).unwrap();
        assert!(Masking::new(&tokenizer, 0.15, false).unwrap_err().to_string().contains("no mask token"));
    }
}

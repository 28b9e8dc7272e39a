//! tmp
/// b
pub struct Batch { /// r
 pub rows: usize, /// s
 pub seq_len: usize, /// i
 pub input_ids: Vec<i32>, /// a
 pub attention_mask: Option<Vec<bool>>, /// t
 pub token_type_ids: Option<Vec<i32>>, /// l
 pub labels: Labels, /// n
 pub num_tokens: usize }
/// l
pub enum Labels { /// n
 None, /// t
 Tokens(Vec<i32>), /// c
 Classes(Vec<i32>), /// v
 Values(Vec<f32>), /// s
 Spans { /// s
  start: Vec<i32>, /// e
  end: Vec<i32> } }

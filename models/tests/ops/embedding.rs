//! Table lookup and its gradient.

use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use kiln_models::Ops;
use kiln_models::ops::cross_entropy::CrossEntropy;
use kiln_models::ops::embedding::{TiedTable, embedding, tied_embedding};

use crate::{agrees_with_plain, close, input, run, vector, weights, wide};

fn op(ids: &[i32], padding: Option<usize>) -> impl Fn(Vec<Tensor<2>>, Ops) -> Tensor<1> {
    let ids = ids.to_vec();
    move |mut inputs, ops| {
        let table = inputs.pop().unwrap();
        let ids = TensorData::new(ids.clone(), [ids.len()]);
        let ids = Tensor::<1, Int>::from_data(ids, &table.device());
        vector(embedding(table, ids, padding, ops))
    }
}

#[test]
fn values_and_gradients() {
    for (num, width) in [(1, 1), (7, 3), (5, 33), (2003, 17)] {
        let last = num as i32 - 1;
        let many = (0..1009).map(|i| (i * i + 3 * i) % num as i32).collect::<Vec<_>>();
        for ids in [&[0][..], &[last], &[last, 0, last, 0, 0], &vec![0; 700], &many] {
            for padding in [None, Some(0), Some(num - 1)] {
                // Sums of up to 1009 equal-sized terms, in the tokens' order on both sides.
                let what = format!("[{num}, {width}], {} ids, padding {padding:?}", ids.len());
                agrees_with_plain(&what, &[input(num, width, 1.0, 1)], &op(ids, padding), 2e-5);
            }
        }
    }
}

/// Ids as in a text: the most frequent one has whole parts of the sorted tokens for itself, and
/// others begin and end within a part.
#[test]
fn gradients_of_frequent_ids_are_those_of_f64() {
    let (num, seen) = (503, 257); // ids from 256 on occur nowhere
    for width in [1, 12, 33, 136] {
        for n in [1, 31, 32, 33, 64, 65, 1000] {
            let id = |i: usize| (f64::from(seen).powf((i as f64 * 0.618_033_988_749_895).fract()) - 1.0) as i32;
            let ids = (0..n).map(id).collect::<Vec<_>>();
            for padding in [None, Some(0)] {
                let table = [input(num, width, 1.0, 1)];
                let (_, grads) = run(&table, &op(&ids, padding), Ops::Fused);
                let mut expected = vec![0.0; num * width];
                for (id, dy) in ids.iter().zip(wide(&weights(n * width)).chunks(width)) {
                    if padding != Some(*id as usize) {
                        let row = &mut expected[*id as usize * width..][..width];
                        row.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy);
                    }
                }
                // Sums of up to 125 numbers below 1, each rounded to 6e-8 of the sum so far.
                close(&format!("{n} ids x {width}, padding {padding:?}"), &grads[0], &expected, 1e-5);
                let (_, again) = run(&table, &op(&ids, padding), Ops::Fused);
                assert!(grads == again, "the same bits every time");
            }
        }
    }
}

#[test]
fn the_gradient_does_not_depend_on_how_work_is_split() {
    let ids = (0..4001).map(|i| i % 3).collect::<Vec<_>>();
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let gradient = |threads| pool(threads).install(|| run(&[input(3, 31, 1.0, 1)], &op(&ids, None), Ops::Fused).1);
    assert_eq!(gradient(1), gradient(3));
}

#[test]
#[should_panic(expected = "embedding: ids: expected ids from 0 to below 4, got 4")]
fn an_id_beyond_the_table_is_refused() {
    let device = Device::flex(); // a GPU cannot refuse; what trains has checked its ids before
    let ids = Tensor::<1, Int>::from_ints([4], &device);
    let _ = embedding(Tensor::ones([4, 2], &device), ids, None, Ops::Fused);
}

/// How a pass reads a table that is the weight of its loss as well.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Reads {
    /// The loss is that of the rows.
    Once,
    Twice,
    TwoLosses,
    /// The loss is not that of the rows, which are in the graph for themselves.
    Apart,
    /// The rows are not in the graph.
    Detached,
    Never,
    FrozenLookup,
    FrozenLoss,
}

/// A table that a loss multiplies by as well, in f32 or rounded: its gradient is that which
/// autodiff adds up, whatever the pass does with it; for one lookup and one loss to the last bit.
#[test]
fn a_table_that_is_the_output_as_well() {
    use Reads::{Apart, Detached, FrozenLookup, FrozenLoss, Never, Once, Twice, TwoLosses};
    let few = || vec![3, 0, 7, 3, 3, 12, 0, 66, 3];
    // Whole parts of the sorted tokens have one id, and others begin and end within a part.
    let many = || (0..203).map(|i: i32| (i * i * 7 % 64).pow(2) / 64).collect::<Vec<_>>();
    let (f32, bf16) = (FloatDType::F32, FloatDType::BF16);
    let every = [Once, Twice, TwoLosses, Apart, Detached, Never, FrozenLookup, FrozenLoss];
    let mut cases = every.map(|reads| (reads, few(), [67, 33], None, f32)).to_vec();
    for width in [1, 12, 33] {
        cases.push((Once, many(), [67, width], None, f32));
        cases.push((Once, many(), [67, width], Some(3), bf16));
    }
    cases.push((Once, few(), [67, 33], Some(3), f32));
    cases.push((Once, few(), [67, 33], None, bf16));
    for (reads, looked_up, shape @ [num, width], padding_idx, dtype) in cases {
        let inputs = [input(num, width, 1.0, 1), input(looked_up.len(), width, 1.0, 2)];
        let targets = (0..looked_up.len()).map(|i| (i * 5 % num) as i32).collect::<Vec<_>>();
        let op = |is_tied: bool| {
            let (looked_up, targets) = (&looked_up, &targets);
            move |mut inputs: Vec<Tensor<2>>, ops: Ops| {
                let (added, table) = (inputs.pop().unwrap(), inputs.pop().unwrap());
                let ids = |ids: &[i32]| {
                    Tensor::<1, Int>::from_data(TensorData::new(ids.to_vec(), [ids.len()]), &table.device())
                };
                let tied = TiedTable::default();
                let tied = is_tied.then_some(&tied);
                let rows = |table: &Tensor<2>| tied_embedding(table.clone(), ids(looked_up), padding_idx, tied, ops);
                let loss = |x: Tensor<2>, table: &Tensor<2>| {
                    let (x, weight, target) = (x.cast(dtype), table.clone().cast(dtype), ids(targets));
                    let (bias, row_weight, label_smoothing, operands) = (None, None, 0.0, dtype.into());
                    CrossEntropy { x, weight, bias, target, row_weight, label_smoothing, operands }.tied_sum(tied, ops)
                };
                let frozen = || table.clone().detach().set_require_grad(false);
                match reads {
                    Once => loss(rows(&table) + added, &table),
                    Twice => loss(rows(&table) * 2.0 + rows(&table) + added, &table),
                    TwoLosses => {
                        let x = rows(&table) + added;
                        loss(x.clone(), &table) * 2.0 + loss(x * 0.5, &table)
                    }
                    Apart => rows(&table).sum() + loss(added, &table),
                    Detached => loss(rows(&table).detach() + added, &table),
                    Never => loss(added, &table),
                    FrozenLookup => loss(rows(&frozen()) + added, &table),
                    FrozenLoss => loss(rows(&table) + added, &frozen()),
                }
            }
        };
        let (expected, of_both) = run(&inputs, &op(false), Ops::Fused);
        let (loss, grads) = run(&inputs, &op(true), Ops::Fused);
        let what = format!("{reads:?}, {shape:?}, {} ids, padding {padding_idx:?}, {dtype:?}", looked_up.len());
        assert_eq!(loss, expected, "{what}");
        for (got, expected) in grads.iter().zip(&of_both) {
            // Gradients of order 1, a few of which may be added in another order.
            close(&what, got, &wide(expected), if reads == Once { 0.0 } else { 1e-6 });
        }
    }
}

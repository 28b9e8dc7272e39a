//! Table lookup and its gradient.

use burn::tensor::{Device, Int, Tensor, TensorData};
use kiln_models::Ops;
use kiln_models::ops::embedding::embedding;

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

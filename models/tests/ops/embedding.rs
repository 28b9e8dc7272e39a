//! Table lookup and its gradient.

use burn::tensor::{Device, Int, Tensor, TensorData};
use kiln_models::Ops;
use kiln_models::ops::embedding::embedding;

use crate::{agrees_with_plain, input, run, vector};

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

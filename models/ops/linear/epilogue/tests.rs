//! Candidates of autotune, each by itself.
#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used)]

use burn::backend::DispatchDevice;
use burn::tensor::{Device, TensorData};
use half::bf16;

use super::*;

/// Runs the routine of one candidate, and tells its name where the device has it.
type Run<'a> = &'a mut dyn FnMut(&str, &dyn Fn(&Product, &CubeTensor) -> Result<(), MatmulSetupError>);

fn each<MA: Loading, A: BatchMatmulRoutine<()>>(name: &str, args: A::Strategy, run: Run<'_>)
where
    InputArg<MA>: ConcreteInputsFactory<A>,
    OutputArg<MA>: ConcreteOutputFactory<A>,
{
    run(name, &|product, out| product.joined::<MA, A>(out, args.clone()));
}

/// Routines of the candidates, one of each way to stage operands that the emulated device has:
/// it has neither TMA nor planes that load alone.
fn routines(tile_matmul: TileMatmulKind, run: Run<'_>) {
    let args = SimpleArgs { multi_rows: false, tile_matmul };
    each::<TensorArgs, SimpleAlgorithm>("simple", args, run);
    let (partition_k, row_count, rows_per_plane) = (Some(2), Some(4), Some(2));
    let args = OrderedSelectionArgs { tile_matmul, partition_k, row_count, rows_per_plane };
    each::<TensorArgs, OrderedDoubleBufferingAlgorithm>("ordered", args, run);
    let args = DoubleBufferingArgs { tile_matmul, specialized: false };
    each::<TensorArgs, CyclicDoubleBufferingAlgorithm>("double", args, run);
}

/// Autotune runs one of the candidates, and in tests the first: here routines of three kinds
/// compute the same products as the kernels of the operators. Their sums are exact, so that they
/// do not depend on their order. The emulated device leaves memory as it is where it has no
/// instruction of a kernel.
#[test]
fn candidates_have_the_bits_of_the_operators() {
    if std::env::var("KILN_TEST_DEVICE").as_deref() != Ok("cuda") {
        eprintln!("skipped: the candidates are those of CUDA devices");
        return;
    }
    let device = Device::cuda(0);
    let DispatchDevice::Cube(device) = device.as_dispatch() else { panic!("{device:?} is no device of CubeCL") };
    let values = |n: usize, by: usize| (0..n).map(move |i| ((i * by + i / 7) % 17) as f32 / 8.0 - 1.0);
    let mut ran = std::collections::BTreeSet::new();
    for ([rows, d_in, width], is_tanh) in [([129, 72, 136], true), ([65, 48, 67], false)] {
        let matrix = |rows: usize, columns: usize, by: usize| {
            let values = values(rows * columns, by).map(bf16::from_f32).collect::<Vec<_>>();
            CubeBackend::float_from_data(TensorData::new(values, [rows, columns]), device)
        };
        let (x, weight, u) = (matrix(rows, d_in, 5), matrix(d_in, width, 3), matrix(rows, width, 13));
        let transposed = CubeBackend::float_transpose(matrix(width, d_in, 3));
        let bias = TensorData::new(values(width, 11).collect::<Vec<_>>(), [width]);
        let bias = CubeBackend::float_from_data(bias, device);
        let bytes = rows * width * size_of::<bf16>();
        let read = |x: &CubeTensor| x.client.read_one(x.handle.clone()).unwrap()[..bytes].to_vec();
        let nothing = || {
            let zeros = TensorData::new(vec![bf16::ZERO; rows * width], [rows, width]);
            into_contiguous(CubeBackend::float_from_data(zeros, device)) // rows of what is uploaded have a pitch
        };
        for finish in [Finish::Bias, Finish::Gelu { is_tanh }, Finish::Derivative { is_tanh }] {
            let product = || {
                let (weight, u) = match finish {
                    Finish::Bias => (&weight, None),
                    Finish::Gelu { .. } => (&weight, Some(nothing())),
                    Finish::Derivative { .. } => (&transposed, Some(into_contiguous(u.clone()))),
                };
                Product::new(x.clone(), weight.clone(), bias.clone(), u, finish)
            };
            let apart = product();
            let kept = apart.u.clone();
            let expected = read(&apart.apart());
            let kept = kept.map(|u| read(&u));
            for tile_matmul in [TileMatmulKind::Cmma, TileMatmulKind::Mma] {
                routines(tile_matmul, &mut |name, joined| {
                    let (product, what) = (product(), format!("{name} {tile_matmul:?}, {finish:?}, {rows} rows"));
                    let out = nothing();
                    match joined(&product, &out) {
                        Err(MatmulSetupError::Unavailable(_) | MatmulSetupError::InvalidConfig(_)) => return,
                        Err(error) => panic!("{what}: {error:?}"),
                        Ok(()) => {}
                    }
                    let got = read(&out);
                    if got.iter().any(|byte| *byte != 0) {
                        assert!(got == expected, "{what}");
                        assert_eq!(product.u.as_ref().map(read), kept, "{what}: the product that is kept");
                        ran.insert(format!("{name} {tile_matmul:?} {finish:?}"));
                    }
                });
            }
        }
    }
    eprintln!("{ran:#?}");
    for name in ["simple Cmma Bias", "simple Mma Gelu", "double Mma Derivative", "ordered Mma Derivative"] {
        assert!(ran.iter().any(|ran| ran.starts_with(name)), "{name} did not run: {ran:?}");
    }
}

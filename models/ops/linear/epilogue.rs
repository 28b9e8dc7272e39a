//! Products with an epilogue: the kernels are those that Burn multiplies with (`cubek`), told what
//! to do to each vector of their result before they write it. Burn's own choice among them takes
//! no such results, so the choice here is one of the same candidates.
#![allow(unsafe_code)] // kernels are launched without bounds checks: each says why that is sound

use std::marker::PhantomData;

use burn::backend::fusion::custom::TensorSpec;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn::tensor::FloatDType;
use burn_backend::cubecl::autotune::with_roofline_bounds;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::kernel::matmul::matmul_autotune;
use burn_cubecl::tensor::CubeTensor;
use cubecl::CubeTuneId;
use cubecl::client::Client;
use cubecl::features::Tma;
use cubecl::frontend::barrier::BarrierExpand;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::LinearView;
use cubecl::std::tensor::{
    View, ViewMut, ViewMutExpand, ViewOperations, ViewOperationsExpand, ViewOperationsMut, ViewOperationsMutExpand,
};
use cubecl::std::throughput::roofline_bounds;
use cubecl::tune::{LocalTuner, Tunable, TunableSet, TuneGroup, local_tuner};
use cubek::matmul::definition::{
    AvailableVectorSizes, MatmulAvailabilityError, MatmulCost, MatmulElems, MatmulGlobalElems, MatmulKind,
    MatmulProblem, MatmulSetupError,
};
use cubek::matmul::multi_level::args::{
    BatchedCoords, ConcreteInputsFactory, ConcreteOutputFactory, InputArg, MatmulArgs, OutputArg, TensorArgs,
    TensorMapArgs,
};
use cubek::matmul::multi_level::components::global::memory::GlobalLayoutConfig;
use cubek::matmul::multi_level::components::global::read::async_partial_cyclic::AsyncPartialCyclicLoading;
use cubek::matmul::multi_level::components::tile::TileMatmulKind;
use cubek::matmul::multi_level::routines::batch::double_buffering::{
    CyclicDoubleBufferingAlgorithm, DoubleBufferingArgs,
};
use cubek::matmul::multi_level::routines::batch::ordered_double_buffering::{
    OrderedDoubleBufferingAlgorithm, OrderedSelectionArgs,
};
use cubek::matmul::multi_level::routines::batch::simple::{SimpleAlgorithm, SimpleArgs, SimpleTmaAlgorithm};
use cubek::matmul::multi_level::routines::batch::specialized::{SpecializedAlgorithm, SpecializedStrategy};
use cubek::matmul::multi_level::tile::ColMajorTilingOrder;
use cubek::matmul::multi_level::{BatchMatmulRoutine, launch_kernel};
use cubek::matmul::routine::BlueprintStrategy;
use cubek::matmul::tune_key::{MatmulAutotuneKey, should_tune_double_buffering};
use cubek::std::InputBinding;
use kiln_core::model_config::Activation;

use crate::ops::cube::product::ProductKernels;
use crate::ops::cube::{addresses, buffer, by_element, dims2, element, empty, empty_in, rows_of, shaped, vector};
use crate::ops::device::multiplies;
use crate::ops::gelu::cube::{ActivationKernels, activate, cdf, density};

/// The products, as operations of a backend: `x [rows, in]`, `weight [in, width]` of one narrow
/// type, in which all results are, and `bias [width]` in f32. The product is rounded before
/// anything is done to it.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait FinishedProducts: Backend {
    /// `x W + b`
    #[fusion(meta = |x, weight, _bias| shaped(x, [x.shape[0], weight.shape[1]]))]
    fn biased_product(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `x W` and `gelu(x W + b)`.
    #[fusion(meta = |x, weight, _bias, _kind| {
        let shape = [x.shape[0], weight.shape[1]];
        (shaped(x, shape), shaped(x, shape))
    })]
    fn activated_product(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        kind: Activation,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The gradient of `u [rows, width]`, which [`activated_product`](Self::activated_product) has
    /// given: `dy W^T`, of `dy [rows, out]` and the `weight [width, out]` of the product behind the
    /// activation, times the derivative at `u + b`.
    #[fusion(meta = |_dy, _weight, u, _bias, _kind| u.clone())]
    fn differentiated_product(
        dy: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        u: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        kind: Activation,
    ) -> FloatTensor<Self>;
}

impl FinishedProducts for CubeBackend {
    fn biased_product(x: CubeTensor, weight: CubeTensor, bias: CubeTensor) -> CubeTensor {
        Product::new(x, weight, bias, None, Finish::Bias).result()
    }

    fn activated_product(
        x: CubeTensor,
        weight: CubeTensor,
        bias: CubeTensor,
        kind: Activation,
    ) -> (CubeTensor, CubeTensor) {
        let u = empty(&x, [dims2(&x)[0], dims2(&weight)[1]]);
        (
            u.clone(),
            Product::new(x, weight, bias, Some(u), Finish::Gelu { is_tanh: kind == Activation::GeluTanh }).result(),
        )
    }

    fn differentiated_product(
        dy: CubeTensor,
        weight: CubeTensor,
        u: CubeTensor,
        bias: CubeTensor,
        kind: Activation,
    ) -> CubeTensor {
        let finish = Finish::Derivative { is_tanh: kind == Activation::GeluTanh };
        Product::new(dy, Self::float_transpose(weight), bias, Some(into_contiguous(u)), finish).result()
    }
}

/// The end of a product `p`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Finish {
    /// `p + b`
    Bias,
    /// `gelu(p + b)`, and `p` is kept.
    Gelu { is_tanh: bool },
    /// `p` times the derivative at `u + b`.
    Derivative { is_tanh: bool },
}

/// One product. All tensors but the bias are of one type.
#[derive(Clone)]
struct Product {
    x: CubeTensor,
    weight: CubeTensor,
    bias: CubeTensor,
    /// The product that is kept, or the `u` that is read; row-major.
    u: Option<CubeTensor>,
    finish: Finish,
}

impl Product {
    fn new(x: CubeTensor, weight: CubeTensor, bias: CubeTensor, u: Option<CubeTensor>, finish: Finish) -> Self {
        Self { x: rows_of(x).0, weight, bias: into_contiguous(bias), u, finish }
    }

    /// The result, by the kernel that autotune has chosen.
    fn result(self) -> CubeTensor {
        if self.shape().contains(&0) {
            return empty(&self.x, self.shape());
        }
        if !multiplies(&self.x.device, self.x.dtype) {
            return self.apart();
        }
        static BIASED: LocalTuner<MatmulAutotuneKey, CubeTuneId> = local_tuner!("bias");
        static ACTIVATED: LocalTuner<MatmulAutotuneKey, CubeTuneId> = local_tuner!("gelu");
        static DIFFERENTIATED: LocalTuner<MatmulAutotuneKey, CubeTuneId> = local_tuner!("derivative");
        let tuner = match self.finish {
            Finish::Bias => &BIASED,
            Finish::Gelu { .. } => &ACTIVATED,
            Finish::Derivative { .. } => &DIFFERENTIATED,
        };
        let (client, id) = (self.x.client.clone(), CubeTuneId::new(&self.x.client, &self.x.device));
        tuner.execute(&id, &client, tuner.init(&id, candidates), self)
    }

    /// `[rows, columns]` of the product.
    fn shape(&self) -> [usize; 2] {
        [dims2(&self.x)[0], dims2(&self.weight)[1]]
    }

    /// The result, by Burn's product and a kernel of its own for what is done to it.
    fn apart(self) -> CubeTensor {
        let Self { x, weight, bias, u, finish } = self;
        let dtype = x.dtype;
        let kind = |is_tanh| if is_tanh { Activation::GeluTanh } else { Activation::GeluErf };
        match (finish, u) {
            (Finish::Gelu { is_tanh }, Some(u)) => {
                let h = empty(&u, u.shape());
                activate(matmul_autotune(x, weight, Some(u), dtype), bias, &h, kind(is_tanh));
                h
            }
            (finish, u) => {
                let product = CubeBackend::narrow_product(x, weight, false, false, dtype);
                match (finish, u) {
                    (Finish::Derivative { is_tanh }, Some(u)) => {
                        CubeBackend::gelu_backward(u, bias, product, kind(is_tanh)).0
                    }
                    _ => CubeBackend::add_bias(product, bias, dtype.into()),
                }
            }
        }
    }

    /// Writes the result, by one launch of the routine `A`, which takes its operands as `MA` says.
    fn joined<MA: Loading, A: BatchMatmulRoutine<()>>(
        &self,
        out: &CubeTensor,
        args: A::Strategy,
    ) -> Result<(), MatmulSetupError>
    where
        InputArg<MA>: ConcreteInputsFactory<A>,
        OutputArg<MA>: ConcreteOutputFactory<A>,
    {
        let Self { x, weight, bias, u, finish } = self;
        let client = &x.client;
        let of = MatmulGlobalElems { lhs: element(x), rhs: element(weight), out: element(out) };
        let problem = MatmulProblem::from_shapes_and_strides(
            x.shape(),
            weight.shape(),
            out.shape(),
            x.meta.strides().clone(),
            weight.meta.strides().clone(),
            out.meta.strides().clone(),
            of.clone(),
            addresses([x, weight, out]),
            None,
            None,
        )?;
        let vectors = MA::vectors(client, &of)?
            .filter_lhs_with_tensor(&problem.lhs_strides, &problem.lhs_shape, problem.lhs_layout)
            .filter_rhs_with_tensor(&problem.rhs_strides, &problem.rhs_shape, problem.rhs_layout)
            .filter_out_with_tensor(&problem.out_strides, &problem.out_shape)
            .pick_max()?;
        let settings = A::device_settings(client, vectors);
        let expanded = A::expand_blueprint(&problem, &settings, &BlueprintStrategy::Inferred(args))?;
        let info = A::prepare(&problem, &settings, expanded)?;
        let dtypes = MatmulElems::from_globals(&of);
        let operand = |factor: &CubeTensor| InputBinding::new(factor.clone().binding(), element(factor));
        let input = <InputArg<MA> as ConcreteInputsFactory<A>>::create(
            operand(x),
            operand(weight),
            &info.blueprint,
            &problem,
            &info.vector_sizes,
            &dtypes,
        );
        let result = |of: &CubeTensor| {
            let of = of.clone().binding();
            <OutputArg<MA> as ConcreteOutputFactory<A>>::create(
                of,
                &info.blueprint,
                &problem,
                &info.vector_sizes,
                &dtypes,
            )
        };
        let epilogue = EpilogueLaunch::new(bias.clone().into_linear_view(), *finish);
        let results = ResultsLaunch::new(result(out), result(u.as_ref().unwrap_or(out)), epilogue);
        launch_kernel::<Finished<MA>, A>(client, input, results, (), info)
    }
}

/// How kernels load their operands.
trait Loading: MatmulArgs<Config = ()> {
    /// Whether by tensor maps (TMA), from where every row begins at a multiple of 16 bytes.
    const IS_MAPPED: bool;

    /// The lengths of vectors that there are.
    fn vectors(client: &Client, of: &MatmulGlobalElems) -> Result<AvailableVectorSizes, MatmulSetupError>;
}

impl Loading for TensorArgs {
    const IS_MAPPED: bool = false;

    fn vectors(client: &Client, of: &MatmulGlobalElems) -> Result<AvailableVectorSizes, MatmulSetupError> {
        Ok(AvailableVectorSizes::from_type_sizes(client, of.lhs.size(), of.rhs.size(), of.out.size()))
    }
}

impl Loading for TensorMapArgs {
    const IS_MAPPED: bool = true;

    fn vectors(client: &Client, of: &MatmulGlobalElems) -> Result<AvailableVectorSizes, MatmulSetupError> {
        if !client.properties().features.tma.contains(Tma::Base) {
            return Err(MatmulSetupError::Unavailable(MatmulAvailabilityError::TmaUnavailable));
        }
        Ok(AvailableVectorSizes::from_type_size_tma(client, of.out.size()))
    }
}

/// The candidates of autotune: Burn's for tensor cores (`matmul_autotune`), and where none of them
/// runs, or a factor is a vector, the two operators one by one.
fn candidates() -> TunableSet<MatmulAutotuneKey, Product, CubeTensor> {
    let apart = TuneGroup::new("apart", |_| 1);
    let joined = TuneGroup::new("joined", |key: &MatmulAutotuneKey| match key.analysis.kind {
        MatmulKind::General => 2,
        _ => 0,
    });
    let set = TunableSet::new(key, |_: &MatmulAutotuneKey, product: &Product| Product {
        u: product.u.as_ref().map(|u| empty(u, u.shape())),
        ..product.clone()
    });
    let set = with_roofline_bounds(set, |_, Product { x, weight, .. }: &Product, thresholds| {
        let ([m, k], [_, n]) = (dims2(x), dims2(weight));
        let elems = MatmulGlobalElems { lhs: element(x), rhs: element(weight), out: element(x) };
        let cost = MatmulCost { batches: 1, m, n, k, elems };
        roofline_bounds(&x.client, cost.compute_key(&x.client), cost.work(), thresholds)
    });
    // The first one is what runs where no other does.
    let mut set =
        set.with(Tunable::new("apart", |product: Product| Ok::<_, String>(product.apart())).group(&apart, |_| 0));
    for tile_matmul in [TileMatmulKind::Cmma, TileMatmulKind::Mma] {
        let name = |routine: &str| format!("{routine}_{tile_matmul:?}");
        for multi_rows in [false, true] {
            let args = SimpleArgs { multi_rows, tile_matmul };
            let name = name(&format!("simple_cyclic{args}"));
            set = set.with(candidate::<TensorArgs, SimpleAlgorithm>(&name, Stages::One, args, &joined));
        }
        for rows in [4, 8] {
            let (partition_k, row_count, rows_per_plane) = (Some(2), Some(rows), Some(2));
            let args = OrderedSelectionArgs { tile_matmul, partition_k, row_count, rows_per_plane };
            let name = name(&format!("ordered_double{args}"));
            set = set.with(candidate::<TensorArgs, OrderedDoubleBufferingAlgorithm>(
                &name,
                Stages::Ordered,
                args,
                &joined,
            ));
        }
        for specialized in [false, true] {
            let args = DoubleBufferingArgs { tile_matmul, specialized };
            let name = name(&format!("double_cyclic{args}"));
            set = set.with(candidate::<TensorArgs, CyclicDoubleBufferingAlgorithm>(&name, Stages::Two, args, &joined));
        }
        for multi_rows in [false, true] {
            let args = SimpleArgs { multi_rows, tile_matmul };
            let name = name(&format!("simple_tma{args}"));
            set = set.with(candidate::<TensorMapArgs, SimpleTmaAlgorithm>(&name, Stages::One, args, &joined));
        }
        let args = SpecializedStrategy { tile_matmul };
        let (cyclic, mapped) = (name("specialized_cyclic"), name("specialized_tma"));
        set = set.with(candidate::<TensorArgs, SpecializedCyclic>(&cyclic, Stages::Two, args.clone(), &joined));
        set = set.with(candidate::<TensorMapArgs, SpecializedAlgorithm>(&mapped, Stages::Two, args, &joined));
    }
    set
}

type SpecializedCyclic = SpecializedAlgorithm<AsyncPartialCyclicLoading<ColMajorTilingOrder>>;

fn key(Product { x, weight, .. }: &Product) -> MatmulAutotuneKey {
    MatmulAutotuneKey::generate(
        &x.client,
        x.meta.shape(),
        weight.meta.shape(),
        x.meta.strides(),
        weight.meta.strides(),
        x.meta.tiling,
        weight.meta.tiling,
        element(x),
        element(weight),
        element(x),
        None,
        None,
    )
}

/// How a routine stages its operands in shared memory.
#[derive(Clone, Copy, PartialEq)]
enum Stages {
    One,
    Two,
    /// Two, of which each plane loads whole vectors of its own: how many there are depends on the
    /// sizes, which the key of autotune rounds.
    Ordered,
}

/// The routine `A` as a candidate, with the priority that it has among Burn's.
fn candidate<MA: Loading, A: BatchMatmulRoutine<()>>(
    name: &str,
    stages: Stages,
    args: A::Strategy,
    group: &TuneGroup<MatmulAutotuneKey>,
) -> Tunable<MatmulAutotuneKey, Product, CubeTensor>
where
    A::Strategy: Send + Sync + 'static,
    InputArg<MA>: ConcreteInputsFactory<A>,
    OutputArg<MA>: ConcreteOutputFactory<A>,
{
    let launch = move |product: Product| {
        let out = empty(&product.x, product.shape());
        match product.joined::<MA, A>(&out, args.clone()) {
            // It may have been chosen for other sizes with the same key.
            Err(MatmulSetupError::InvalidConfig(_)) if stages == Stages::Ordered => Ok(product.apart()),
            result => result.map(|()| out).map_err(|error| format!("{error:?}")),
        }
    };
    Tunable::new(name, launch).group(group, move |key| {
        let factors = [key.definition.lhs_stride_factor, key.definition.rhs_stride_factor];
        if MA::IS_MAPPED && factors.iter().any(|factor| *factor < 4) {
            -1 // never
        } else {
            i8::from(stages == Stages::One || should_tune_double_buffering(false, key))
        }
    })
}

/// The arguments `MA` of a product, with [`Results`] for its result.
#[derive(Clone)]
struct Finished<MA>(PhantomData<MA>);

/// Where a kernel writes its result to, and the `u` that it keeps or reads; else that is the result
/// again, which is not read.
#[derive(CubeType, CubeLaunch)]
struct Results<O: LaunchArg> {
    result: O,
    u: O,
    epilogue: Epilogue,
}

/// The end of a product, and its bias.
#[derive(CubeType, CubeLaunch, Clone)]
#[expand(derive(Clone))]
struct Epilogue {
    bias: LinearView<'static, f32>,
    #[cube(comptime)]
    finish: Finish,
}

#[cube]
impl<MA: MatmulArgs<Config = ()>> MatmulArgs for Finished<MA> {
    type Input<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive> = MA::Input<Lhs, Rhs, EO>;
    type Output<EO: CubePrimitive> = Results<MA::Output<EO>>;
    /// The states of `MA` with the result and with `u`.
    type State<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive> =
        (MA::State<Lhs, Rhs, EO>, MA::State<Lhs, Rhs, EO>, Epilogue);
    type Config = ();

    fn init_state<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive>(
        input: &Self::Input<Lhs, Rhs, EO>,
        output: &mut Self::Output<EO>,
        config: (),
        #[comptime] lhs_layout_config: GlobalLayoutConfig,
        #[comptime] rhs_layout_config: GlobalLayoutConfig,
        #[comptime] out_layout_config: GlobalLayoutConfig,
    ) -> Self::State<Lhs, Rhs, EO> {
        let result = MA::init_state::<Lhs, Rhs, EO>(
            input,
            &mut output.result,
            config,
            lhs_layout_config,
            rhs_layout_config,
            out_layout_config,
        );
        let u = MA::init_state::<Lhs, Rhs, EO>(
            input,
            &mut output.u,
            config,
            lhs_layout_config,
            rhs_layout_config,
            out_layout_config,
        );
        (result, u, output.epilogue.clone())
    }

    fn view_lhs<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive>(
        state: &Self::State<Lhs, Rhs, EO>,
    ) -> View<'_, Lhs, BatchedCoords> {
        MA::view_lhs::<Lhs, Rhs, EO>(&state.0)
    }

    fn batch_lhs<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive>(
        state: &Self::State<Lhs, Rhs, EO>,
        batch: usize,
    ) -> usize {
        MA::batch_lhs::<Lhs, Rhs, EO>(&state.0, batch)
    }

    fn view_rhs<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive>(
        state: &Self::State<Lhs, Rhs, EO>,
    ) -> View<'_, Rhs, BatchedCoords> {
        MA::view_rhs::<Lhs, Rhs, EO>(&state.0)
    }

    fn batch_rhs<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive>(
        state: &Self::State<Lhs, Rhs, EO>,
        batch: usize,
    ) -> usize {
        MA::batch_rhs::<Lhs, Rhs, EO>(&state.0, batch)
    }

    fn view_acc<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive>(
        state: &Self::State<Lhs, Rhs, EO>,
    ) -> ComptimeOption<View<'_, EO, BatchedCoords>> {
        MA::view_acc::<Lhs, Rhs, EO>(&state.0)
    }

    fn batch_acc<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive>(
        state: &Self::State<Lhs, Rhs, EO>,
        batch: usize,
    ) -> usize {
        MA::batch_acc::<Lhs, Rhs, EO>(&state.0, batch)
    }

    fn view_out<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive>(
        state: &Self::State<Lhs, Rhs, EO>,
    ) -> ViewMut<'_, EO, BatchedCoords> {
        let result = MA::view_out::<Lhs, Rhs, EO>(&state.0);
        let u = MA::view_out::<Lhs, Rhs, EO>(&state.1);
        finishing(result, u, state.2.clone())
    }

    fn batch_out<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive>(
        state: &Self::State<Lhs, Rhs, EO>,
        batch: usize,
    ) -> usize {
        MA::batch_out::<Lhs, Rhs, EO>(&state.0, batch)
    }

    fn runtime_config<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive>(_state: &Self::State<Lhs, Rhs, EO>) {}
}

/// A view of the result, to which products are written.
#[derive(CubeType)]
struct Finishing<'a, E: CubePrimitive> {
    result: ViewMut<'a, E, BatchedCoords>,
    u: ViewMut<'a, E, BatchedCoords>,
    epilogue: Epilogue,
}

#[cube]
fn finishing<'a, E: CubePrimitive>(
    result: ViewMut<'a, E, BatchedCoords>,
    u: ViewMut<'a, E, BatchedCoords>,
    epilogue: Epilogue,
) -> ViewMut<'a, E, BatchedCoords> {
    let finishing = Finishing::<'a, E> { result, u, epilogue };
    intrinsic!(|scope| ViewMutExpand::new(scope, finishing))
}

/// Does to the `product` at `at` what is to be done, and writes it.
#[cube]
fn write<E: CubePrimitive>(to: &Finishing<'_, E>, at: BatchedCoords, product: E) {
    let lanes = E::Size::value().comptime();
    let finish = comptime!(to.epilogue.finish);
    let (_, _, column) = at;
    let (result, u) = (to.result, to.u);
    let mut finished = Vector::<f32, E::Size>::cast_from(product);
    let mut kept = Vector::<f32, E::Size>::empty();
    if comptime!(matches!(finish, Finish::Derivative { .. })) {
        kept = Vector::<f32, E::Size>::cast_from(u.read(at));
    }
    #[unroll]
    for k in 0..lanes {
        let bias = to.epilogue.bias.read(column as usize + k);
        let mut x = finished.extract(k);
        if comptime!(matches!(finish, Finish::Derivative { .. })) {
            let is_tanh = comptime!(matches!(finish, Finish::Derivative { is_tanh: true }));
            let argument = kept.extract(k) + bias;
            let cdf = cdf(argument, is_tanh);
            x *= cdf + argument * density(argument, cdf, is_tanh);
        } else {
            x += bias;
            if comptime!(matches!(finish, Finish::Gelu { .. })) {
                x *= cdf(x, comptime!(matches!(finish, Finish::Gelu { is_tanh: true })));
            }
        }
        finished.insert(k, x);
    }
    if comptime!(matches!(finish, Finish::Gelu { .. })) {
        u.write(at, product);
    }
    result.write(at, E::cast_from(finished));
}

impl<E: CubePrimitive> Vectorized for Finishing<'_, E> {}

impl<E: CubePrimitive> VectorizedExpand for FinishingExpand<'_, E> {
    fn __expand_vector_size_method(&self, scope: &Scope) -> VectorSize {
        self.result.__expand_vector_size_method(scope)
    }
}

/// A routine that wrote its result otherwise would leave it unfinished.
const BY_VECTORS: &str = "the routines of cubek 0.3.1 write their result vector by vector";

/// The coordinates as a kernel is compiled.
type At = <BatchedCoords as CubeType>::ExpandType;

/// Methods of [`Finishing`] that are those of its result.
macro_rules! of_result {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(fn $name(&self, scope: &Scope, $($argument: $type),*) $(-> $result)? {
            self.result.$name(scope, $($argument),*)
        })*
    };
}

impl<E: CubePrimitive> ViewOperations<E, BatchedCoords> for Finishing<'_, E> {}

impl<E: CubePrimitive> ViewOperationsExpand<E, BatchedCoords> for FinishingExpand<'_, E> {
    of_result! {
        fn __expand_read_method(at: At) -> E::ExpandType;
        fn __expand_read_checked_method(at: At) -> E::ExpandType;
        fn __expand_read_masked_method(at: At, other: E::ExpandType) -> E::ExpandType;
        fn __expand_read_unchecked_method(at: At) -> E::ExpandType;
        fn __expand_shape_method() -> At;
        fn __expand_is_in_bounds_method(at: At) -> NativeExpand<bool>;
        fn __expand_tensor_map_load_method(barrier: &BarrierExpand, to: &mut SliceExpand<E>, at: At);
    }

    fn __expand_as_linear_slice_method(&self, scope: &Scope, from: At, to: At) -> &SliceExpand<E> {
        ViewOperationsExpand::__expand_as_linear_slice_method(&self.result, scope, from, to)
    }
}

impl<E: CubePrimitive> ViewOperationsMut<E, BatchedCoords> for Finishing<'_, E> {}

impl<E: CubePrimitive> ViewOperationsMutExpand<E, BatchedCoords> for FinishingExpand<'_, E> {
    fn __expand_write_method(&self, scope: &Scope, at: At, value: E::ExpandType) {
        write::expand::<E>(scope, self, at, value);
    }

    fn __expand_write_checked_method(&self, scope: &Scope, at: At, value: E::ExpandType) {
        let is_inside = self.result.__expand_is_in_bounds_method(scope, at);
        if_expand(scope, is_inside, |scope| write::expand::<E>(scope, self, at, value));
    }

    fn __expand_tensor_map_store_method(&self, _: &Scope, _: &SliceExpand<E>, _: At) {
        panic!("{BY_VECTORS}");
    }

    fn __expand_as_linear_slice_mut_method(&self, _: &Scope, _: At, _: At) -> &mut SliceExpand<E> {
        panic!("{BY_VECTORS}");
    }
}

/// The kernel that adds a bias by itself, as an operation of a backend.
#[backend_extension(Cube, Fusion)]
pub(in crate::ops) trait BiasKernels: Backend {
    /// `bias [width]`, in f32, added to every row of `x [rows, width]`, of any type; the sum, which
    /// is f32, in `dtype`.
    #[fusion(meta = |x, _bias, dtype| TensorSpec::new(x.shape.clone(), (*dtype).into()))]
    fn add_bias(x: FloatTensor<Self>, bias: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self>;
}

impl BiasKernels for CubeBackend {
    fn add_bias(x: CubeTensor, bias: CubeTensor, dtype: FloatDType) -> CubeTensor {
        let ((x, pitch), bias) = (rows_of(x), into_contiguous(bias));
        let [rows, width] = dims2(&x);
        let y = empty_in(&x, [rows, width], dtype.into());
        let vector = vector(&x, [width, pitch]).min(vector(&y, [width]));
        let n = rows * width / vector;
        let (count, dim) = by_element(&x, n);
        // SAFETY: a unit touches its own vector, if there is one, and the bias of its columns.
        unsafe {
            add_bias_each::launch_unchecked(
                &x.client,
                count,
                dim,
                addresses([&x, &y]),
                vector,
                buffer(&x),
                buffer(&bias),
                buffer(&y),
                n,
                width / vector,
                pitch / vector,
                element(&x),
                element(&y),
            );
        }
        y
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn add_bias_each<F: Float, G: Float, N: Size>(
    x: &[Vector<F, N>],
    bias: &[f32],
    y: &mut [Vector<G, N>],
    count: usize,
    width: usize,
    pitch: usize,
    #[define(F)] _of_x: ElemType,
    #[define(G)] _of_y: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i >= count {
        terminate!();
    }
    let lanes = N::value().comptime();
    let column = i % width;
    let mut sum = Vector::<f32, N>::cast_from(x[i / width * pitch + column]);
    #[unroll]
    for k in 0..lanes {
        sum.insert(k, sum.extract(k) + bias[column * lanes + k]);
    }
    y[i] = Vector::cast_from(sum);
}

#[cfg(test)]
mod tests;

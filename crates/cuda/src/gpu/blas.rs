//! Matrix products by cuBLASLt, with everything that a call needs made once per shape.

use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t, cublasLtMatmulDescAttributes_t,
    cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayoutAttribute_t, cudaDataType,
};

use crate::device::{Product, ResultType};
use crate::kernels::ActType;

/// What the library may use beside its operands: what it recommends for this generation of devices.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;
/// `CUBLAS_OP_T`, which is not among the bindings of this library.
const TRANSPOSED: i32 = 1;
/// `CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE`; not to split at all is always allowed.
const FULL_REDUCTION: u32 = 2;
/// Rows up to which each number of them has a plan of its own; beyond, as many share one.
const EXACT_ROWS: usize = 256;

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    rows: usize,
    outputs: usize,
    inputs: usize,
    stride: usize,
    result: ResultType,
    /// The largest power of two, up to 256, that divides each operand's address.
    alignment: [u32; 3],
}

/// Descriptors and the algorithm for a shape.
struct Plan {
    operation: sys::cublasLtMatmulDesc_t,
    weights: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
    /// Rows that `x` and `out` say.
    rows: usize,
}

/// The library for one device.
pub(super) struct Blas {
    handle: sys::cublasLtHandle_t,
    act: cudaDataType,
    plans: HashMap<Shape, Plan>,
    /// What was decided: layers have the same shapes, and each is looked at once.
    prepared: HashSet<Shape>,
}

impl Blas {
    pub(super) fn new(act: ActType) -> Result<Self, CublasError> {
        Ok(Self {
            handle: result::create_handle()?,
            act: match act {
                ActType::Bf16 => cudaDataType::CUDA_R_16BF,
                ActType::F16 => cudaDataType::CUDA_R_16F,
            },
            plans: HashMap::new(),
            prepared: HashSet::new(),
        })
    }

    /// Puts a product into a stream. The library stores columns one behind the other, so what is multiplied here is out transposed:
    /// (outputs, rows) = weights transposed back times x.
    ///
    /// # Safety
    /// All operands lie in memory of the device's current context, and so does the workspace, of [`WORKSPACE_BYTES`].
    pub(super) unsafe fn multiply(
        &mut self,
        product: &Product,
        workspace: u64,
        stream: sys::cudaStream_t,
    ) -> Result<(), CublasError> {
        let handle = self.handle;
        let plan = self.plan_of(product)?;
        plan.set_rows(product.rows)?;
        let (one, zero) = (1.0f32, 0.0f32);
        let pointer = |address: u64| address as *const c_void;
        // SAFETY: the plan's handles live as long as it does; operands and workspace are the caller's.
        unsafe {
            result::matmul(
                handle,
                plan.operation,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                pointer(product.weights.0),
                plan.weights,
                pointer(product.x.0),
                plan.x,
                pointer(product.out.0),
                plan.out,
                product.out.0 as *mut c_void,
                plan.out,
                &raw const plan.algorithm,
                workspace as *mut c_void,
                WORKSPACE_BYTES,
                stream,
            )
        }
    }

    /// Chooses how a product, and every other of its shape, is carried out. What was chosen for more rows may not do for these: then they
    /// get a plan of their own.
    pub(super) fn prepare(&mut self, product: &Product) -> Result<(), CublasError> {
        let exact = Shape::exactly(product);
        if !self.prepared.insert(exact) {
            return Ok(());
        }
        let handle = self.handle;
        let plan = self.plan_of(product)?;
        plan.set_rows(product.rows)?;
        if plan.is_right(handle) {
            return Ok(());
        }
        let plan = self.plan(&exact)?;
        self.plans.insert(exact, plan);
        Ok(())
    }

    fn plan_of(&mut self, product: &Product) -> Result<&mut Plan, CublasError> {
        let exact = Shape::exactly(product);
        let shape = if self.plans.contains_key(&exact) {
            exact
        } else {
            Shape::of(product)
        };
        if !self.plans.contains_key(&shape) {
            let plan = self.plan(&shape)?;
            self.plans.insert(shape, plan);
        }
        Ok(self.plans.get_mut(&shape).expect("just inserted"))
    }

    fn plan(&self, shape: &Shape) -> Result<Plan, CublasError> {
        let sizes = [shape.outputs, shape.inputs, shape.rows].map(|size| size as u64);
        let [outputs, inputs, rows] = sizes;
        let lead = |size: usize| i64::try_from(size).expect("widths are below 2^31");
        let result_type = match shape.result {
            ResultType::F32 => cudaDataType::CUDA_R_32F,
            ResultType::Act => self.act,
        };
        let mut plan = Plan {
            operation: result::create_matmul_desc(
                cublasComputeType_t::CUBLAS_COMPUTE_32F,
                cudaDataType::CUDA_R_32F,
            )?,
            weights: ptr::null_mut(),
            x: ptr::null_mut(),
            out: ptr::null_mut(),
            // SAFETY: plain numbers, which the heuristic below replaces.
            algorithm: unsafe { std::mem::zeroed() },
            rows: shape.rows,
        };
        plan.weights = result::create_matrix_layout(self.act, inputs, outputs, lead(shape.inputs))?;
        plan.x = result::create_matrix_layout(self.act, inputs, rows, lead(shape.inputs))?;
        plan.out = result::create_matrix_layout(result_type, outputs, rows, lead(shape.stride))?;
        let transposed = TRANSPOSED;
        // SAFETY: the descriptor lives, and the value is read before the call returns.
        unsafe {
            result::set_matmul_desc_attribute(
                plan.operation,
                cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
                (&raw const transposed).cast(),
                size_of_val(&transposed),
            )?;
        }
        plan.algorithm = self.choose(&plan, shape)?;
        Ok(plan)
    }

    /// What the library expects to be fastest.
    fn choose(&self, plan: &Plan, shape: &Shape) -> Result<sys::cublasLtMatmulAlgo_t, CublasError> {
        use cublasLtMatmulPreferenceAttributes_t as Attribute;
        let preference = Preference(result::create_matmul_pref()?);
        let set = |attribute, value: *const c_void, size| {
            // SAFETY: the preference lives, and the value is read before the call returns.
            unsafe { result::set_matmul_pref_attribute(preference.0, attribute, value, size) }
        };
        let bytes = WORKSPACE_BYTES as u64;
        set(
            Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            (&raw const bytes).cast(),
            size_of_val(&bytes),
        )?;
        // Parts of a sum are added in f32, whatever the result is stored in.
        let reduction = FULL_REDUCTION;
        set(
            Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
            (&raw const reduction).cast(),
            size_of_val(&reduction),
        )?;
        let [weights, x, out] = shape.alignment;
        for (attribute, alignment) in [
            (
                Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                weights,
            ),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, x),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out),
        ] {
            set(
                attribute,
                (&raw const alignment).cast(),
                size_of_val(&alignment),
            )?;
        }
        // SAFETY: all handles live.
        let found = unsafe {
            result::get_matmul_algo_heuristic(
                self.handle,
                plan.operation,
                plan.weights,
                plan.x,
                plan.out,
                plan.out,
                preference.0,
            )
        }?;
        Ok(found.algo)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: made by `new`, and nothing uses it any more.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

impl Shape {
    /// That a product shares with others.
    fn of(product: &Product) -> Self {
        let mut shape = Self::exactly(product);
        if shape.rows > EXACT_ROWS {
            shape.rows = shape.rows.next_multiple_of(EXACT_ROWS);
        }
        shape
    }

    fn exactly(product: &Product) -> Self {
        let alignment = |address: u64| 1 << address.trailing_zeros().min(8);
        Self {
            rows: product.rows,
            outputs: product.outputs,
            inputs: product.inputs,
            stride: product.stride,
            result: product.result,
            alignment: [product.weights.0, product.x.0, product.out.0].map(alignment),
        }
    }
}

impl Plan {
    /// Whether the algorithm carries out the product with as many rows as are said now.
    fn is_right(&self, handle: sys::cublasLtHandle_t) -> bool {
        let mut found = MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed();
        // SAFETY: all handles live, and the result is plain numbers with room of its size.
        let status = unsafe {
            sys::cublasLtMatmulAlgoCheck(
                handle,
                self.operation,
                self.weights,
                self.x,
                self.out,
                self.out,
                &raw const self.algorithm,
                found.as_mut_ptr(),
            )
        };
        // SAFETY: zeros are a value of each of its fields, and the call wrote others where it succeeded.
        let needs = unsafe { found.assume_init() }.workspaceSize;
        status.result().is_ok() && needs <= WORKSPACE_BYTES
    }

    /// Says how many rows there are, where another number was said.
    fn set_rows(&mut self, rows: usize) -> Result<(), CublasError> {
        if self.rows == rows {
            return Ok(());
        }
        let value = rows as u64;
        for layout in [self.x, self.out] {
            // SAFETY: the layout lives, and the value is read before the call returns.
            unsafe {
                result::set_matrix_layout_attribute(
                    layout,
                    cublasLtMatrixLayoutAttribute_t::CUBLASLT_MATRIX_LAYOUT_COLS,
                    (&raw const value).cast(),
                    size_of_val(&value),
                )?;
            }
        }
        self.rows = rows;
        Ok(())
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        for layout in [self.weights, self.x, self.out] {
            if !layout.is_null() {
                // SAFETY: made with the plan, and nothing uses it any more.
                let _ = unsafe { result::destroy_matrix_layout(layout) };
            }
        }
        // SAFETY: as above.
        let _ = unsafe { result::destroy_matmul_desc(self.operation) };
    }
}

struct Preference(sys::cublasLtMatmulPreference_t);

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made by `choose`, and nothing uses it any more.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

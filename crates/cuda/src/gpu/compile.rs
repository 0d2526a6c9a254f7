//! From sources to code for a device, with NVRTC.

use std::ffi::{CString, c_char};
use std::ptr;

use cudarc::nvrtc::result::NvrtcError;
use cudarc::nvrtc::sys;

use crate::kernels::{Family, HEADERS, Variant};

/// The compiler is there. Only [`Nvrtc::find`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct Nvrtc(());

/// What to compile for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Code of one generation of devices, by its compute capability; `true`: with what only that generation has.
    Cubin(u32, bool),
    /// Text that the driver compiles for its device, of this compute capability or a newer one.
    Ptx(u32),
}

impl Target {
    /// Code for a device of this compute capability.
    pub fn of((major, minor): (u32, u32)) -> Self {
        Self::Cubin(10 * major + minor, major == 9)
    }

    /// What the driver of every supported device compiles.
    pub const FALLBACK: Self = Self::Ptx(80);

    /// As the compiler's option names it.
    pub fn name(self) -> String {
        match self {
            Self::Cubin(capability, true) => format!("sm_{capability}a"),
            Self::Cubin(capability, false) => format!("sm_{capability}"),
            Self::Ptx(capability) => format!("compute_{capability}"),
        }
    }
}

/// What came of a compilation.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// A CUBIN, or PTX with a zero at its end.
    pub image: Vec<u8>,
    /// What the compiler said.
    pub log: String,
}

/// A family does not compile.
#[derive(Debug, thiserror::Error)]
#[error("kernels \"{family}\" do not compile for {target}: {cause}\n{log}")]
pub struct CompileError {
    /// Which.
    pub family: &'static str,
    /// For what.
    pub target: String,
    /// What the compiler returned.
    pub cause: String,
    /// What it said.
    pub log: String,
}

impl Nvrtc {
    /// The compiler, where it is installed.
    pub fn find() -> Option<Self> {
        // SAFETY: looks for a library by its name and closes it again.
        unsafe { sys::is_culib_present() }.then_some(Self(()))
    }

    /// Major and minor version.
    ///
    /// # Errors
    /// The compiler's own.
    pub fn version(self) -> Result<(i32, i32), NvrtcError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two numbers.
        unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) }.result()?;
        Ok((major, minor))
    }
}

/// Compiles a family for a target.
///
/// # Errors
/// See [`CompileError`].
pub fn compile(
    _: Nvrtc,
    family: &Family,
    variant: &Variant,
    target: Target,
) -> Result<Compiled, CompileError> {
    let mut program = Program::new(family).map_err(|error| CompileError {
        family: family.name,
        target: target.name(),
        cause: error.to_string(),
        log: String::new(),
    })?;
    let image = program.compile(family, variant, target);
    let log = program.log();
    match image {
        Ok(image) => Ok(Compiled { image, log }),
        Err(error) => Err(CompileError {
            family: family.name,
            target: target.name(),
            cause: error.to_string(),
            log,
        }),
    }
}

/// The options a family is compiled with.
pub(super) fn options(family: &Family, variant: &Variant, target: Target) -> Vec<String> {
    let mut options = vec![
        format!("--gpu-architecture={}", target.name()),
        "--std=c++17".to_owned(),
        // The assembler says what each kernel takes and whether registers spill.
        "--ptxas-options=-v".to_owned(),
    ];
    let defines = variant.defines(family.options).into_iter();
    options.extend(defines.map(|(name, value)| format!("-D{name}={value}")));
    options
}

struct Program(sys::nvrtcProgram);

impl Program {
    fn new(family: &Family) -> Result<Self, NvrtcError> {
        let text = |text: &str| CString::new(text).expect("sources have no zeros");
        let (source, name) = (text(family.source), text(&format!("{}.cu", family.name)));
        let headers = HEADERS.map(|(_, source)| text(source));
        let names = HEADERS.map(|(name, _)| text(name));
        let headers: Vec<*const c_char> = headers.iter().map(|text| text.as_ptr()).collect();
        let names: Vec<*const c_char> = names.iter().map(|text| text.as_ptr()).collect();
        let count = i32::try_from(headers.len()).expect("a few");
        let mut program = ptr::null_mut();
        // SAFETY: all strings end with zeros and live until the call returns, which copies them.
        unsafe {
            sys::nvrtcCreateProgram(
                &raw mut program,
                source.as_ptr(),
                name.as_ptr(),
                count,
                headers.as_ptr(),
                names.as_ptr(),
            )
        }
        .result()?;
        Ok(Self(program))
    }

    fn compile(
        &mut self,
        family: &Family,
        variant: &Variant,
        target: Target,
    ) -> Result<Vec<u8>, NvrtcError> {
        let options: Vec<CString> = options(family, variant, target)
            .into_iter()
            .map(|option| CString::new(option).expect("options have no zeros"))
            .collect();
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let count = i32::try_from(options.len()).expect("a few");
        // SAFETY: the program lives, and so do the options until the call returns.
        unsafe { sys::nvrtcCompileProgram(self.0, count, options.as_ptr()) }.result()?;
        let mut size = 0;
        // SAFETY: the program is compiled; each call writes the size, and then as many bytes as it said.
        unsafe {
            match target {
                Target::Cubin(..) => {
                    sys::nvrtcGetCUBINSize(self.0, &raw mut size).result()?;
                    let mut image = vec![0u8; size];
                    sys::nvrtcGetCUBIN(self.0, image.as_mut_ptr().cast()).result()?;
                    Ok(image)
                }
                Target::Ptx(_) => {
                    sys::nvrtcGetPTXSize(self.0, &raw mut size).result()?;
                    let mut image = vec![0u8; size];
                    sys::nvrtcGetPTX(self.0, image.as_mut_ptr().cast()).result()?;
                    Ok(image)
                }
            }
        }
    }

    fn log(&self) -> String {
        // SAFETY: the program lives.
        let log = unsafe { cudarc::nvrtc::result::get_program_log(self.0) }.unwrap_or_default();
        let bytes: Vec<u8> = log.into_iter().map(c_char_to_u8).collect();
        String::from_utf8_lossy(&bytes)
            .trim_end_matches('\0')
            .to_owned()
    }
}

#[expect(
    clippy::cast_sign_loss,
    reason = "characters are signed on some machines"
)]
#[allow(clippy::unnecessary_cast, reason = "and not on others")]
fn c_char_to_u8(character: c_char) -> u8 {
    character as u8
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `new`, not used any more.
        let _ = unsafe { sys::nvrtcDestroyProgram(&raw mut self.0) };
    }
}

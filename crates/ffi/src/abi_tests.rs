#![allow(unsafe_code)]

use super::*;

fn new_error() -> adit_error {
    adit_error {
        struct_size: size_of::<adit_error>(),
        code: 0,
        text: [0; 244],
    }
}

fn said(error: &adit_error) -> &str {
    // SAFETY: the library has written a zero behind the text.
    unsafe { CStr::from_ptr(error.text.as_ptr()) }
        .to_str()
        .expect("UTF-8")
}

#[test]
fn a_panic_is_an_error_value() {
    let mut error = new_error();
    // SAFETY: the error has its size.
    let code = unsafe { enter(&raw mut error, || panic!("number {}", 7)) };
    assert_eq!((code, error.code), (ADIT_ERROR_PANIC, ADIT_ERROR_PANIC));
    assert_eq!(
        said(&error),
        "a mistake in adit, please report it: number 7"
    );
    // SAFETY: as above.
    let made = unsafe {
        make(&raw mut error, || -> Result<u8, CallFailure> {
            panic!("again")
        })
    };
    assert!(made.is_null());
    assert_eq!(error.code, ADIT_ERROR_PANIC);
}

#[test]
fn a_text_that_is_too_long_is_cut_between_characters() {
    let mut error = new_error();
    let text = "é".repeat(200);
    // SAFETY: the error has its size.
    unsafe { enter(&raw mut error, || Err(CallFailure::argument(text))) };
    assert_eq!(said(&error), "é".repeat(121));
}

#[test]
fn two_at_once_and_one_after_a_panic_are_told() {
    let object = Mutex::new(0);
    let held = alone(&object, "device").expect("it is free");
    assert_eq!(
        alone(&object, "device").map(|_| ()).map_err(|e| e.code),
        Err(ADIT_ERROR_BUSY)
    );
    drop(held);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _held = alone(&object, "device");
        panic!("with it");
    }));
    assert!(panicked.is_err());
    assert_eq!(
        alone(&object, "device").map(|_| ()).map_err(|e| e.code),
        Err(ADIT_ERROR_PANIC)
    );
}

use crate::{Kernel, Key, SealJob, TAG_LEN};

#[test]
fn a_key_is_made_for_the_library_when_that_first_seals() {
    let key = Key::new(&[7; 32]);
    for kernel in Kernel::available().map(Kernel::unmixed) {
        let mut packet = [0; 64 + TAG_LEN];
        kernel.seal(&mut [SealJob::in_place(&key, 0, &mut packet)]);
        assert_eq!(key.library.get().is_some(), kernel.name() == "ring");
        if kernel.name() == "ring" {
            break;
        }
    }
}

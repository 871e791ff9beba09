use crate::{Kernel, Key, SealJob, TAG_LEN};

#[test]
fn a_key_is_made_for_the_library_when_that_first_seals() {
    let key = Key::new(&[7; 32]);
    for kernel in Kernel::available().map(Kernel::unmixed) {
        let mut packet = [0; 64 + TAG_LEN];
        kernel.seal(&mut [SealJob::in_place(&key, 0, &mut packet)]);
        assert_eq!(key.library.is_made(), kernel.name() == "ring");
        if kernel.name() == "ring" {
            break;
        }
    }
}

#[test]
fn threads_that_make_it_at_the_same_time_share_one() {
    let key = Key::new(&[7; 32]);
    let shared = std::sync::Barrier::new(4);
    let made = std::thread::scope(|scope| {
        let threads = [(); 4].map(|()| {
            scope.spawn(|| {
                shared.wait();
                std::ptr::from_ref(key.library.get(key.bytes())).addr()
            })
        });
        threads.map(|thread| thread.join().unwrap())
    });
    assert_eq!(made, [made[0]; 4]);
}

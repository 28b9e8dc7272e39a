//! An allocator that counts the bytes that live: it is the allocator of every binary that has this
//! module.
#![allow(unsafe_code)] // an allocator

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

/// Bytes that are allocated and not freed.
static LIVE: AtomicIsize = AtomicIsize::new(0);

/// Bytes that live now, of all threads.
pub fn live() -> isize {
    LIVE.load(Ordering::Relaxed)
}

/// The most bytes that lived since [`peak_of`] began.
static PEAK: AtomicIsize = AtomicIsize::new(0);

/// The most bytes that live while `run` runs, of all threads.
pub fn peak_of(run: impl FnOnce()) -> isize {
    PEAK.store(live(), Ordering::Relaxed);
    run();
    PEAK.load(Ordering::Relaxed)
}

/// Bytes that have been allocated, freed or not.
static ALLOCATED: AtomicIsize = AtomicIsize::new(0);

/// Bytes that have been allocated so far, by all threads.
pub fn allocated() -> isize {
    ALLOCATED.load(Ordering::Relaxed)
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed) + layout.size() as isize;
        PEAK.fetch_max(live, Ordering::Relaxed);
        ALLOCATED.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's layout is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the pointer came from `alloc` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

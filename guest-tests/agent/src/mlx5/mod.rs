//! A driver for a ConnectX function that no kernel driver has initialised. The driver copies memory by RDMA WRITE
//! through an RC queue pair connected to itself, then waits for the completion interrupt. It can also exchange messages
//! with another function and measure the rate.
//!
//! The driver shares no code with the device, so a wrong layout on either side is detected.
//!
//! # Spec
//! mlx5 interface, sections 2 to 13.

mod bytes;
mod command;
mod completion;
mod measure;
mod objects;
mod pairs;
mod qp;
mod queue;
mod traffic;
mod work_queue;

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use self::bytes::{get_u32, put_u32};
use self::command::{Commands, Function, Op};
use self::completion::Completions;
use self::objects::Objects;
use self::pairs::QueuePairs;
use self::queue::Events;
use self::work_queue::{QueueMemory, Segment, SendWqe, Sends, send_doorbell};
use crate::error::bad_step;
use crate::pattern;
use crate::vfio::{Arena, Bar, Device, PAGE, Signal};
use crate::wire::{CloseMlx5, CopyByWrite, Mlx5Copied, Mlx5Info, OpenMlx5, Remote};

/// Size in bytes of the memory for queues and commands.
const OWN: usize = 4 << 20;
/// How long to wait for the device to start, for the port to become active, and for a completion or its interrupt.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Polling interval for the firmware and the port.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Log2 of the number of entries in the completion queue of the queue pair that is connected to itself.
const LOG_COMPLETIONS: u8 = 8;
/// Log2 of the number of blocks in the send queue of that queue pair.
const LOG_SENDS: u8 = 6;
/// Maximum number of WRITEs per batch. Only the last one requests a completion.
const BATCH: u32 = 32;

/// An initialised function with a queue pair that is connected to itself and, on request, others for a peer.
#[derive(Debug)]
pub(crate) struct Mlx5 {
    // Declared first, so that the PCI function is closed and its DMA stopped before the memory is freed.
    device: Device,
    arena: Arena,
    commands: Commands,
    objects: Objects,
    signal: [Signal; 1],
    /// Pages that the device has requested and still owns, as offsets in the arena.
    given: Vec<usize>,
    events: Events,
    completions: Completions,
    sends: Sends,
    /// Offset and length of the copy buffer.
    data: (usize, usize),
    /// Queue pairs for messages to and from another function.
    queue_pairs: Option<QueuePairs>,
    /// Notified as soon as the next `ReceiveOverMlx5` step has posted its first receives.
    posted: Option<Sender<()>>,
}

impl Mlx5 {
    /// Opens the function, which must be bound to vfio-pci, and initialises it.
    pub(crate) fn open(step: &OpenMlx5) -> Result<(Self, Mlx5Info)> {
        let (device, _) = Device::open(&step.device)?;
        let len = (step.data_mib.max(1) as usize) << 20;
        let mut arena = Arena::new(&device, OWN + len, step.huge_pages)?;
        let data = (arena.alloc(len / PAGE, PAGE)?, len);
        let firmware = check_firmware(&device)?;
        let signal = [Signal::new()?];
        device.enable_interrupts(&signal)?;
        let mut commands = Commands::start(&device, &mut arena)?;
        let mut given = Vec::new();
        commands.run(&device, &arena, Op::EnableHca, &[], 12)?;
        let issi = commands.run(&device, &arena, Op::QueryIssi, &[], 112)?;
        ensure!(get_u32(&issi, 0x6c) & 2 != 0, "the device does not support ISSI 1: {issi:02x?}");
        commands.run(&device, &arena, Op::SetIssi, &[(0x08, 1)], 16)?;
        give_pages(&device, &mut arena, &mut commands, Pages::Boot, &mut given)?;
        give_pages(&device, &mut arena, &mut commands, Pages::Init, &mut given)?;
        commands.run(&device, &arena, Op::InitHca, &[(0x1c, 0)], 16)?;
        let lid = wait_for_lid(&device, &arena, &mut commands)?;
        let events = Events::new(&mut arena)?;
        let completions = Completions::new(&mut arena, LOG_COMPLETIONS)?;
        let record = arena.alloc(1, PAGE)?;
        let memory = QueueMemory::alloc(&mut arena, None, LOG_SENDS, record)?;
        let mut function = Function { device: &device, arena: &arena, commands: &mut commands };
        let objects = Objects::create(&mut function, (&events, &completions, &memory), lid)?;
        let sends = Sends::new(&memory, send_doorbell(objects.uar, 0));
        let info = Mlx5Info {
            firmware,
            lid,
            data_iova: arena.iova(data.0),
            data_len: data.1 as u64,
            given_pages: u32::try_from(given.len())?,
        };
        let function = Self {
            device,
            arena,
            commands,
            objects,
            signal,
            given,
            events,
            completions,
            sends,
            data,
            queue_pairs: None,
            posted: None,
        };
        Ok((function, info))
    }

    /// Copies memory by RDMA WRITE and compares the destination with the contents of the source.
    pub(crate) fn copy(&mut self, step: &CopyByWrite) -> Result<Mlx5Copied> {
        ensure!(step.parts > 0 && step.parts <= step.len.max(1), bad_step("invalid number of parts"));
        let source = self.offset(step.from, step.len);
        let destination = self.offset(step.to, step.len);
        let mut bytes = vec![0; step.len as usize];
        if let Some(source) = source {
            pattern::fill(step.seed, 0, &mut bytes);
            self.arena.write(source, &bytes);
        }
        if let Some(destination) = destination {
            self.arena.set(destination, 0, bytes.len());
        }
        if step.interrupt {
            self.events.arm(&self.device, self.objects.event_uar, self.objects.eqn)?;
            self.completions.arm(&self.device, &self.arena, self.objects.uar, self.objects.cqn)?;
        }
        let syndrome = self.write(step)?;
        let interrupts = if step.interrupt { self.take_event()? } else { 0 };
        if syndrome != 0 {
            self.sends.reset(&self.arena);
            let Self { device, arena, commands, objects, .. } = self;
            objects.reconnect(&mut Function { device, arena, commands })?;
            self.completions.drain(&self.arena);
        }
        let first_difference = match destination {
            Some(destination) if syndrome == 0 => {
                self.arena.read(destination, &mut bytes);
                pattern::first_difference(step.seed, 0, &bytes).map(|at| at as u64)
            }
            _ => None,
        };
        Ok(Mlx5Copied { syndrome, first_difference, interrupts })
    }

    /// Destroys all objects and stops the device, in the same order as `mlx5_core` does.
    pub(crate) fn close(mut self, step: CloseMlx5) -> Result<()> {
        if step.abrupt {
            return Ok(());
        }
        let Self { device, arena, commands, objects, given, queue_pairs, .. } = &mut self;
        let mut function = Function { device, arena, commands };
        if let Some(queue_pairs) = queue_pairs {
            queue_pairs.destroy(&mut function)?;
        }
        objects.destroy(&mut function)?;
        commands.run(device, arena, Op::TeardownHca, &[], 16)?;
        while !given.is_empty() {
            let wanted = u32::try_from(given.len().min(Commands::MAX_PAGES))?;
            let answer = commands.run(
                device,
                arena,
                Op::ManagePages(2),
                &[(0x0c, wanted)],
                16 + 8 * wanted as usize,
            )?;
            let returned = get_u32(&answer, 0x08);
            ensure!(returned == wanted, "the device returned {returned} of {wanted} pages");
            let rest = given.len() - wanted as usize;
            given.truncate(rest);
        }
        commands.run(device, arena, Op::DisableHca, &[], 16)?;
        device.disable_interrupts()
    }

    /// Returns the arena offset of a range, if it is inside the copy buffer.
    fn offset(&self, iova: u64, len: u32) -> Option<usize> {
        let (first, size) = self.data;
        let at = usize::try_from(iova.checked_sub(self.arena.iova(first))?).ok()?;
        (at.checked_add(len as usize)? <= size).then_some(first + at)
    }

    /// Executes the WRITEs of a copy. Returns the syndrome of the first failure, or 0.
    fn write(&mut self, step: &CopyByWrite) -> Result<u8> {
        let part = step.len.div_ceil(step.parts);
        let mut done = 0;
        for batch in (0..step.parts).step_by(BATCH as usize) {
            let count = BATCH.min(step.parts - batch);
            for n in 0..count {
                let len = part.min(step.len - done);
                let (to, from) = (step.to + u64::from(done), step.from + u64::from(done));
                let wqe = self.local_write((from, to, len), n + 1 == count);
                self.sends.post(&self.arena, &wqe);
                done += len;
            }
            self.sends.ring(&self.device, &self.arena)?;
            let started = Instant::now();
            let completion = loop {
                match self.completions.next(&self.arena)? {
                    Some(completion) => break completion,
                    None if started.elapsed() > TIMEOUT => bail!("no completion within {TIMEOUT:?}"),
                    None => std::thread::yield_now(),
                }
            };
            if completion.syndrome != 0 {
                return Ok(completion.syndrome);
            }
            ensure!(completion.qpn == self.objects.qp.qpn, "unexpected QP in the completion {completion:x?}");
            let last = self.sends.next().wrapping_sub(1);
            ensure!(completion.index == last, "WQE {:#x} completed, expected {last:#x}", completion.index);
        }
        Ok(0)
    }

    /// Returns an RDMA WRITE that copies `len` bytes from one local address to another.
    fn local_write(&self, (from, to, len): (u64, u64, u32), completion: bool) -> SendWqe {
        let Objects { key, qp, .. } = &self.objects;
        let data = Segment { key: *key, address: from, len };
        SendWqe::new(qp.qpn, data, Some(Remote { va: to, rkey: *key }), completion)
    }

    /// Waits for the interrupt from the armed queues and consumes its event. Returns the number of interrupts.
    fn take_event(&mut self) -> Result<u64> {
        let [signal] = &self.signal;
        let interrupts = signal.wait(TIMEOUT)?;
        ensure!(interrupts > 0, "no interrupt within {TIMEOUT:?}");
        let cqn = self.events.next(&self.arena)?.context("an interrupt was raised without an event")?;
        ensure!(cqn == self.objects.cqn, "event for CQ {cqn:#x}, expected {:#x}", self.objects.cqn);
        self.events.update(&self.device, self.objects.event_uar, self.objects.eqn)?;
        Ok(interrupts)
    }
}

/// Kinds of pages that the device requests from the driver, as encoded in QUERY_PAGES.
#[derive(Clone, Copy, Debug)]
enum Pages {
    Boot = 1,
    Init = 2,
}

/// Waits until the firmware has started. Returns its version.
fn check_firmware(device: &Device) -> Result<String> {
    const COMMAND_REVISION: u32 = 5;
    let started = Instant::now();
    while read(device, 0x1fc)? >> 31 != 0 {
        ensure!(started.elapsed() < TIMEOUT, "the firmware did not start within {TIMEOUT:?}");
        std::thread::sleep(POLL_INTERVAL);
    }
    let (version, rest) = (read(device, 0)?, read(device, 4)?);
    ensure!(
        rest >> 16 == COMMAND_REVISION,
        "the command interface has revision {}, expected {COMMAND_REVISION}",
        rest >> 16
    );
    Ok(format!("{}.{}.{}", version & 0xffff, version >> 16, rest & 0xffff))
}

/// Provides the pages that the device requests.
fn give_pages(
    device: &Device,
    arena: &mut Arena,
    commands: &mut Commands,
    kind: Pages,
    given: &mut Vec<usize>,
) -> Result<()> {
    let answer = commands.run(device, arena, Op::QueryPages(kind as u16), &[], 16)?;
    let mut wanted = get_u32(&answer, 0x0c) as usize;
    while wanted > 0 {
        let count = wanted.min(Commands::MAX_PAGES);
        let mut input = vec![0; 16 + 8 * count];
        put_u32(&mut input, 0x0c, u32::try_from(count)?);
        for n in 0..count {
            let page = arena.alloc(1, PAGE)?;
            bytes::put_u64(&mut input, 16 + 8 * n, arena.iova(page));
            given.push(page);
        }
        commands.run_long(device, arena, Op::ManagePages(1), input, 16)?;
        wanted -= count;
    }
    Ok(())
}

/// Waits until the subnet manager has assigned a LID to the port.
fn wait_for_lid(device: &Device, arena: &Arena, commands: &mut Commands) -> Result<u16> {
    let started = Instant::now();
    loop {
        let context = commands.run(device, arena, Op::QueryHcaVportContext, &[], 0x80)?;
        let lid = get_u32(&context, 0x70) >> 16;
        if lid != 0 {
            return Ok(u16::try_from(lid)?);
        }
        ensure!(started.elapsed() < TIMEOUT, "the port has no LID after {TIMEOUT:?}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn read(device: &Device, offset: u64) -> Result<u32> {
    let mut bytes = [0; 4];
    device.read(Bar::Zero, offset, &mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

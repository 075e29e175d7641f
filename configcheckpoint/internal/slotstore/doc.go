// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package slotstore keeps one small record, and the payloads that it refers to,
// in a directory, and loses nothing that it acknowledged to a crash, a power
// cut or a full disk.
//
// A program that must survive a bad moment needs to remember a little state: a
// counter, a choice, the last good version. The usual way to write such state is
// a temporary file and a rename, which takes two or three journal commits, needs
// free space, and keeps no second copy. This package overwrites one of two
// fixed files instead: one flush, no allocation, and the record before the
// newest one stays readable.
//
// # On the disk
//
//	slot.a, slot.b    the record and the one before it; 8192 bytes each, readable with cat
//	p/<sha256>        one payload each, immutable, named by its digest
//	note              up to 1024 bytes that survive the process but not a power cut
//
// A slot is a header line ("cc1", the length and the SHA-256 of the record), the
// record, and spaces. The record is opaque to this package, except for three
// facts that [Config.Parse] extracts: its generation, the payloads that it
// refers to, and whether this program may write the store at all. The valid
// slot with the highest generation counts.
//
// # Rules
//
// Each rule is needed. TestEveryRuleIsNeeded switches off the first five one by
// one and shows the loss that follows. TestErrorAtEveryChange in package
// configcheckpoint, TestUnreadableSlotIsNotWrittenOver and
// TestNoDecisionByFileTimes check the other three.
//
//   - Payload first. A payload is durable, its bytes and its name, before a
//     record refers to it.
//   - Spare slot. A commit never writes the slot that holds the newest durable
//     record. After a commit that failed, the next one writes the same spare
//     slot again, completely: after a failed flush the kernel may have dropped
//     the pages, and a second flush alone would report success.
//   - Slots first. Both slots exist durably before the first commit is
//     acknowledged. Names that another process may have made, without living
//     long enough to flush them, count as not durable.
//   - Repair at open. Open rewrites a slot that is torn or missing from the good
//     one, so that the next single fault does not hit the last copy.
//   - Both records. A payload is removed only if neither slot refers to it, so
//     the older record stays usable.
//   - Report every error. An error of a write, a flush or a close is returned,
//     and nothing changes in memory until the write has returned. The one
//     exception is a flush of a directory that the system can't do at all.
//   - Unreadable is not damaged. Only a slot that was read and found invalid, or
//     that is not there, is written over. If reading fails, nothing is written
//     until reading works: the slot may hold the newest record.
//   - No clocks. Nothing depends on the time of a file or on the wall clock.
//
// # A record's life
//
//	write spare slot + flush (one system call)   -> acknowledged
//	killed before the call returns               -> old or new, both valid
//	power cut during the call                    -> spare slot torn: Open repairs it from the other one
//	one slot rots later                          -> at most one generation lost, payloads present
//	both slots rot                               -> set aside as *.bad, the store starts empty
//
// The write and its flush are one system call (O_DSYNC), so that a process
// killed between the two leaves no bytes behind that the next process can read
// and a power cut can still take away.
//
// # The crash harness
//
// Package internal/durable has the calls that this package makes, and in crashfs
// a disk in memory that distinguishes the view of a program from the content of
// stable storage. The tests of this package stop a store at every change of its
// disk, enumerate the images that a power cut could leave, and check each; they
// also stop the recovery at every change, spoil slots, and let single changes
// fail.
package slotstore

// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package callback calls functions of a Config: gates, owners, health checks, setters and
// their kind. Such a function is the program's, so it may be slow, hang, or panic. A [Room]
// keeps that from everything else. The package has no imports but the standard library's.
//
// # Contract
//
// A room has one function, or several that are called as one. It calls the function about
// subjects, such as nodes; each subject has a [Line].
//
//   - A line has one call under way at most. A function that hangs is not called again for
//     the same subject before it has returned.
//   - The context of a call ends after Limit. An answer that comes later than Limit after
//     the start of the call counts as none, and a function that has not returned by then
//     has given none: the error is a [*LateError].
//   - A caller never gets the answer of a call that began before its own question. It waits
//     for that call to return, and then for one that began later. Callers that wait for the
//     same line share the later call.
//   - A panic is the error of its call, a [*PanicError].
//   - [Failed] reports whether an error is one of these two. Then the function has not done
//     what it must, and the controller reports that once, with an apierr.Group.
//     Any other error is the function's answer, which is no fault.
//
// # Two kinds of callers
//
// Ask is for a caller with a goroutine of its own. It waits for as long as Limit.
//
// Visit is for a worker that many subjects share. It waits for Patience, or not at all if
// the last call of the line took longer than that. Then the worker leaves, and the
// question stays open: when the call returns, Late is called, which must have the subject
// visited again, and that visit takes the answer. A visit that comes in the meantime asks
// the same question again. So after an answer that such a visit had no part in, Late is
// called once more, and the next visit asks again. If the room is Fresh, a visit that comes
// too long after the answer asks again instead of taking it.
//
// A call that Ask has left calls Late, too, when it returns.
//
// [Calls] are for a caller with a goroutine of its own that keeps the state of each call
// itself. The setters and health checks of nodestatus are called so: whether the late
// values of a setter are worth another round is a decision about the status. So its core,
// which starts no goroutine and has no clock, records which of them was late the last time.
// A Line does so for the functions that a Room calls. No function has both records, so
// they can't contradict each other.
//
// # The end
//
// The contexts that are given to Ask and Visit must live as long as the subject, because a
// call outlives the caller that began it. Wait returns when all calls have. WaitFor gives up
// after a while, for a program whose functions ignore their contexts.
package callback

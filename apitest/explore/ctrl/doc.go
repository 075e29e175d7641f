// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package ctrl runs managers of controller-runtime in bubbles of testing/synctest, above all
// in explorations.
//
//	explore.Program{Name: "operator", Run: func(ctx context.Context, p *explore.Process) error {
//		return ctrl.Run(ctx, p.Config, manager.Options{Scheme: scheme}, (&Reconciler{}).SetupWithManager)
//	}}
//
// A manager needs some settings there: it must not listen, and the names of its controllers
// are taken after the first run of a process. [Options] has them.
//
// A manager of controller-runtime v0.25 whose context ends before its caches are filled never
// returns, and computes without an end: the loop that waits for the caches has no other way
// out. So no crash at the start of an operator could be explored. The caches of Options count
// as filled after the context has ended, and the manager returns.
//
// Package explore/cluster has stand-ins for the controllers of Kubernetes.
package ctrl

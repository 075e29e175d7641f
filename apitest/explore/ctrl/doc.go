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
// An operator with its own kinds needs two more things: its kinds in Config.Options, which the
// server serves without a CustomResourceDefinition, and package explore/cluster, which has
// stand-ins for the controllers of Kubernetes.
//
//	cfg := explore.Config{Options: apitest.Options{Kinds: []apitest.Kind{
//		{GroupVersionKind: v1.GroupVersion.WithKind("Widget"), Type: &v1.Widget{}},
//	}}}
//	explore.Run(t, cfg, func(w *explore.World) explore.Scenario {
//		return explore.Scenario{
//			Programs: []explore.Program{operator, cluster.Controllers(w)},
//			Steps:    []explore.Step{{Name: "create", Do: create(w), Until: ready(w)}},
//		}
//	})
package ctrl

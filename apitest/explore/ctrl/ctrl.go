// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package ctrl

import (
	"cmp"
	"context"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Run makes a manager with Options, calls setup, and starts the manager. It returns when
// the manager has ended, because of ctx or of an error. setup may be the SetupWithManager of a
// reconciler.
func Run(ctx context.Context, cfg *rest.Config, opts manager.Options, setup func(manager.Manager) error) error {
	mgr, err := manager.New(cfg, Options(ctx, opts))
	if err != nil {
		return err
	}
	if err := setup(mgr); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// off is the address of a server that does not listen.
const off = "0"

// Options returns opts with the settings that a manager in a bubble needs: nothing listens
// unless an address is set, the names of controllers may repeat, nothing is logged without a
// Logger, and caches count as filled after ctx has ended, which must be that of Start.
func Options(ctx context.Context, opts manager.Options) manager.Options {
	opts.Metrics.BindAddress = cmp.Or(opts.Metrics.BindAddress, off)
	opts.HealthProbeBindAddress = cmp.Or(opts.HealthProbeBindAddress, off)
	if opts.Controller.SkipNameValidation == nil {
		skip := true
		opts.Controller.SkipNameValidation = &skip
	}
	if opts.Logger.GetSink() == nil {
		opts.Logger = logr.Discard()
	}
	newCache := opts.NewCache
	if newCache == nil {
		newCache = cache.New
	}
	opts.NewCache = func(cfg *rest.Config, o cache.Options) (cache.Cache, error) {
		c, err := newCache(cfg, o)
		if err != nil {
			return nil, err
		}
		return ending{c, ctx}, nil
	}
	return opts
}

// ending is a cache that counts as filled when the manager must end. The context that the
// manager waits with ends only after the wait.
type ending struct {
	cache.Cache
	manager context.Context
}

// WaitForCacheSync implements cache.Informers.
func (c ending) WaitForCacheSync(ctx context.Context) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.manager, cancel)()
	return c.Cache.WaitForCacheSync(ctx) || c.manager.Err() != nil
}

// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/pkg/v3/flags"
	"go.etcd.io/etcd/server/v3/embed"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	apiserveroptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	controllermanageroptions "k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	scheduleroptions "k8s.io/kubernetes/cmd/kube-scheduler/app/options"
)

// program is one of the four.
type program struct {
	name string
	// run runs it until ctx is done.
	run func(ctx context.Context) error
	// ready returns when the next program can be started; nil: at once.
	ready func(ctx context.Context) error
}

// runAll runs several programs in this process until one of them fails or a signal comes. args is a sequence of groups,
// each opened by "--" and the name of a program: -- etcd FLAG... -- kube-apiserver FLAG... A program that isn't named doesn't run.
//
// The commands of package app can't be used: each installs the process's only signal handler, and the second one panics.
// Feature gates, metrics and logging are global to a process: --feature-gates of any program holds for all, and must be given once.
func runAll(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged
	rest.SetDefaultWarningHandler(rest.NoWarnings{})

	groups, err := split(args)
	if err != nil {
		return err
	}
	programs := make([]program, len(groups))
	// All flags are parsed before any gate is read, because the three servers register with one global registry of gates. The
	// controller manager comes first: up to Kubernetes 1.34 it changes a gate's default, which panics after others made their flags.
	for _, step := range []struct {
		name    string
		prepare func([]string) (program, error)
	}{
		{"kube-controller-manager", prepareControllerManager},
		{"kube-apiserver", prepareAPIServer},
		{"kube-scheduler", prepareScheduler},
		{"etcd", prepareEtcd},
	} {
		for i, group := range groups {
			if group[0] != step.name {
				continue
			}
			if programs[i], err = step.prepare(group[1:]); err != nil {
				return fmt.Errorf("%s: %w", step.name, err)
			}
			programs[i].name = step.name
		}
	}
	for i, p := range programs {
		if p.run == nil {
			return fmt.Errorf("all: unknown program %q", groups[i][0])
		}
	}
	registry := apiserveroptions.NewServerRunOptions().GenericServerRunOptions.ComponentGlobalsRegistry
	if err := registry.Set(); err != nil {
		return err
	}

	return runPrograms(ctx, programs)
}

// runPrograms starts one program after the other. When one fails it returns at once, and with it ends the process: the others would
// wait for their peers for a long time before they gave up.
func runPrograms(ctx context.Context, programs []program) error {
	ended := make(chan error, len(programs))
	for i, p := range programs {
		go func() {
			for _, before := range programs[:i] {
				if before.ready != nil && before.ready(ctx) != nil {
					ended <- nil // ctx is done
					return
				}
			}
			err := p.run(ctx)
			if err == nil && ctx.Err() == nil {
				err = errors.New("ended by itself")
			}
			if err != nil {
				err = fmt.Errorf("%s: %w", p.name, err)
			}
			ended <- err
		}()
	}
	for range programs {
		if err := <-ended; err != nil {
			return err
		}
	}
	return nil
}

// split cuts args into its groups.
func split(args []string) ([][]string, error) {
	var groups [][]string
	for i, arg := range args {
		switch {
		case arg == "--":
			if i+1 == len(args) {
				return nil, errors.New("all: a program's name must follow --")
			}
			groups = append(groups, nil)
		case len(groups) == 0:
			return nil, fmt.Errorf("all: want -- and a program's name, not %q", arg)
		default:
			groups[len(groups)-1] = append(groups[len(groups)-1], arg)
		}
	}
	if len(groups) == 0 {
		return nil, errors.New("all: no program named")
	}
	return groups, nil
}

func prepareEtcd(args []string) (program, error) {
	cfg := embed.NewConfig()
	fs := flag.NewFlagSet("etcd", flag.ContinueOnError)
	cfg.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		return program{}, err
	}
	// AddFlags leaves the lists of URLs to its caller.
	cfg.ListenClientUrls = flags.UniqueURLsFromFlag(fs, "listen-client-urls")
	cfg.AdvertiseClientUrls = flags.UniqueURLsFromFlag(fs, "advertise-client-urls")
	cfg.ListenPeerUrls = flags.UniqueURLsFromFlag(fs, "listen-peer-urls")
	cfg.AdvertisePeerUrls = flags.UniqueURLsFromFlag(fs, "initial-advertise-peer-urls")
	return program{run: func(ctx context.Context) error {
		server, err := embed.StartEtcd(cfg)
		if err != nil {
			return err
		}
		defer server.Close()
		select {
		case <-ctx.Done():
			return nil
		case err := <-server.Err():
			return err
		}
	}}, nil
}

func prepareAPIServer(args []string) (program, error) {
	o := apiserveroptions.NewServerRunOptions()
	if err := parse("kube-apiserver", o.Flags(), args); err != nil {
		return program{}, err
	}
	// The controller manager and the scheduler end when they find no API server.
	ready := func(ctx context.Context) error { return awaitReady(ctx, o.SecureServing.BindPort) }
	return program{ready: ready, run: func(ctx context.Context) error {
		if err := logsapi.ValidateAndApply(o.Logs, utilfeature.DefaultFeatureGate); err != nil {
			return err
		}
		completed, err := o.Complete(ctx)
		if err != nil {
			return err
		}
		if errs := completed.Validate(); len(errs) != 0 {
			return utilerrors.NewAggregate(errs)
		}
		return apiserver.Run(ctx, completed)
	}}, nil
}

// awaitReady waits until the API server in this process says that it is ready.
func awaitReady(ctx context.Context, port int) error {
	// Everybody may read /readyz, and the server is in this very process.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/readyz", port), nil)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func prepareControllerManager(args []string) (program, error) {
	known, disabled, aliases := controllermanager.KnownControllers(), controllermanager.ControllersDisabledByDefault(), controllermanager.ControllerAliases()
	o, err := controllermanageroptions.NewKubeControllerManagerOptions()
	if err != nil {
		return program{}, err
	}
	fss := o.Flags(known, disabled, aliases)
	o.ParsedFlags = &fss
	if err := parse("kube-controller-manager", fss, args); err != nil {
		return program{}, err
	}
	return program{run: func(ctx context.Context) error {
		if err := logsapi.ValidateAndApply(o.Logs, utilfeature.DefaultFeatureGate); err != nil {
			return err
		}
		c, err := o.Config(ctx, known, disabled, aliases)
		if err != nil {
			return err
		}
		return controllermanager.Run(ctx, c.Complete())
	}}, nil
}

func prepareScheduler(args []string) (program, error) {
	o := scheduleroptions.NewOptions()
	if err := parse("kube-scheduler", *o.Flags, args); err != nil {
		return program{}, err
	}
	return program{run: func(ctx context.Context) error {
		if err := logsapi.ValidateAndApply(o.Logs, utilfeature.DefaultFeatureGate); err != nil {
			return err
		}
		cc, sched, err := scheduler.Setup(ctx, o)
		if err != nil {
			return err
		}
		return scheduler.Run(ctx, cc, sched)
	}}, nil
}

// parse parses a Kubernetes server's flags.
func parse(name string, fss cliflag.NamedFlagSets, args []string) error {
	globalflag.AddGlobalFlags(fss.FlagSet("global"), name, logs.SkipLoggingConfigurationFlags())
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	fs.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	for _, f := range fss.FlagSets {
		fs.AddFlagSet(f)
	}
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	return nil
}

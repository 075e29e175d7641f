// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kubewright/kubewright/configcheckpoint"
	configkube "github.com/kubewright/kubewright/configcheckpoint/kube"
)

// configCondition is the condition of the Node that says which settings run.
const configCondition corev1.NodeConditionType = "KubeletConfigOK"

// newCheckpoint returns the controller of the settings. changed is called when
// the condition must be written.
func newCheckpoint(o *options, client corev1client.ConfigMapsGetter, stdout io.Writer, health func(context.Context) error, changed func()) (*configcheckpoint.Controller[settings], error) {
	source, err := o.source(client)
	if err != nil {
		return nil, err
	}
	return configcheckpoint.New(configcheckpoint.Config[settings]{
		Dir: o.configDir,
		Codec: configcheckpoint.Codec[settings]{
			Decode:   o.builtin.decode,
			Validate: settings.validate,
			Default:  func() (settings, error) { return o.builtin, nil },
		},
		Source: source,
		Build:  version,
		Trial:  configcheckpoint.Trial{Soak: o.configSoak, Health: health},
		Hooks: configcheckpoint.Hooks{StatusChanged: func(s configcheckpoint.Status) {
			fmt.Fprintf(stdout, "settings: %s: %s\n", s.Reason, s.Message)
			changed()
		}},
	})
}

// source returns the source of the settings.
func (o *options) source(client corev1client.ConfigMapsGetter) (configcheckpoint.Source, error) {
	switch {
	case o.configMap != "" && o.configFile != "":
		return nil, errors.New("--config-map and --config-file exclude each other")
	case o.configMap != "":
		namespace, rest, _ := strings.Cut(o.configMap, "/")
		name, key, _ := strings.Cut(rest, "/")
		return configkube.ConfigMap(client, namespace, name, key)
	case o.configFile != "":
		path, err := filepath.Abs(o.configFile)
		if err != nil {
			return nil, err
		}
		return configcheckpoint.File(path, 0)
	}
	return configcheckpoint.SourceFunc(builtinOnly), nil
}

// builtinOnly is a source that assigns nothing. It ends an assignment by an earlier
// command line.
func builtinOnly(ctx context.Context) iter.Seq2[configcheckpoint.Payload, error] {
	return func(yield func(configcheckpoint.Payload, error) bool) {
		if yield(configcheckpoint.Payload{Unassign: true, Name: "no source"}, nil) {
			<-ctx.Done()
		}
	}
}

// restart is the error of a process that wants to be started again: new
// settings are on its disk.
type restart struct{ error }

// ExitStatus is EX_TEMPFAIL of sysexits.h. It is not 0, which a supervisor takes
// for the end of the work.
func (restart) ExitStatus() int { return 75 }

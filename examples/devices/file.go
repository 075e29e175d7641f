// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kubewright/kubewright/resourceslice"
)

// file is the content of the file: devices and counter sets as in the API, with
// one additional field.
type file struct {
	// Driver is the driver's name.
	Driver string `json:"driver"`
	// Pool is the pool's name. The default is the node's name.
	Pool string `json:"pool"`
	// SharedCounters are the counters that partitions of one device share.
	SharedCounters []resourcev1.CounterSet `json:"sharedCounters"`
	Devices        []entry                 `json:"devices"`
}

// entry is a device and its health.
type entry struct {
	resourcev1.Device
	// Unhealthy describes a fault of the device. It becomes the value of a taint, with "-"
	// for what such a value can't have, that keeps new Pods away; Pods that have the device
	// keep it.
	Unhealthy string `json:"unhealthy"`
}

// pool returns the name and the content of the pool in the file.
func (f *file) pool(nodeName string) (string, resourceslice.Pool) {
	name := f.Pool
	if name == "" {
		name = nodeName
	}
	pool := resourceslice.Pool{SharedCounters: f.SharedCounters}
	for _, e := range f.Devices {
		device := e.Device
		if e.Unhealthy != "" {
			device.Taints = append(device.Taints, resourcev1.DeviceTaint{
				Key: f.Driver + "/unhealthy", Value: labelValue(e.Unhealthy), Effect: resourcev1.DeviceTaintEffectNoSchedule,
			})
		}
		pool.Devices = append(pool.Devices, device)
	}
	return name, pool
}

// labelValue returns text in the form that the value of a taint must have.
func labelValue(text string) string {
	text = strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || strings.ContainsRune("-_.", r) {
			return r
		}
		return '-'
	}, text)
	return strings.Trim(text[:min(len(text), validation.LabelValueMaxLength)], "-_.")
}

// parse parses YAML or JSON, and rejects unknown fields.
func parse(content []byte) (*file, error) {
	content, err := yaml.ToJSON(content)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	var f file
	if err := decoder.Decode(&f); err != nil {
		return nil, err
	}
	return &f, nil
}

// follow calls changed at once and whenever the content of the file has
// changed, until ctx is done. It reports an error once.
func follow(ctx context.Context, path string, every time.Duration, changed func(*file, error)) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last []byte
	var lastErr string
	for {
		content, err := os.ReadFile(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
			err = fmt.Errorf("%s does not exist: the published devices stay", path)
			fallthrough
		case err != nil:
			if err.Error() != lastErr {
				changed(nil, err)
				lastErr = err.Error()
			}
		case last == nil || !bytes.Equal(content, last):
			last, lastErr = content, ""
			changed(parse(content))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

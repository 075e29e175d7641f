// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"errors"
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/resourceslice"
)

// Set refuses a pool that is invalid as a whole, and names every field.
func ExampleController_Set_invalid() {
	c, err := resourceslice.New(resourceslice.Config{Client: apitest.New(apitest.Options{}).Client(apitest.User{}).ResourceV1()})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = c.Set(resourceslice.PoolID{Driver: "gpu.example.com", Name: "fabric"}, resourceslice.Pool{
		Nodes: resourceslice.NodeSelection{AllNodes: true},
		Devices: []resourcev1.Device{
			{Name: "gpu_0"},
			{Name: "gpu-1", Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"version": {VersionValue: new("1.0")}}},
			{Name: "gpu-1"},
		},
	})
	if invalid, ok := errors.AsType[*resourceslice.InvalidError](err); ok {
		fmt.Println("pool", invalid.Pool)
		var problems utilerrors.Aggregate
		errors.As(invalid, &problems)
		for _, problem := range problems.Errors() {
			var where *field.Error
			if errors.As(problem, &where) {
				fmt.Println("-", where.Type, "of", where.Field)
			}
		}
	}
	// Output:
	// pool gpu.example.com/fabric
	// - Invalid value of devices[0].name
	// - Invalid value of devices[1].attributes[version].version
	// - Duplicate value of devices[2].name
}

// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint_test

import (
	"context"
	"fmt"

	"github.com/kubewright/kubewright/configcheckpoint"
)

// A rollout begins on a tenth of the nodes; the share is raised while the
// agents run, here by a variable, elsewhere by another key of the ConfigMap.
func ExampleHashGate() {
	percent := 10
	for _, percent = range []int{10, 50, 100} {
		admitted := 0
		for n := range 1000 {
			gate := configcheckpoint.HashGate(fmt.Sprint("node-", n), func() int { return percent })
			wait, err := gate(context.Background(), configcheckpoint.Payload{Data: []byte("pollSeconds: 10")})
			if err == nil && wait == 0 {
				admitted++
			}
		}
		fmt.Printf("%d%%: about %d of 1000 nodes\n", percent, (admitted+50)/100*100)
	}
	// Output:
	// 10%: about 100 of 1000 nodes
	// 50%: about 500 of 1000 nodes
	// 100%: about 1000 of 1000 nodes
}

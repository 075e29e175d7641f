// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election"
)

// byWeight is rendezvous hashing: each shard prefers the replica with the highest
// weight for it. All replicas come to the same order without a request, and a
// replica that joins or leaves moves only its own share.
func byWeight(shard string) election.Strategy {
	weight := func(p election.Peer) uint64 {
		sum := sha256.Sum256([]byte(shard + "/" + p.Identity))
		return binary.BigEndian.Uint64(sum[:])
	}
	return election.StrategyFunc("example.com/rendezvous", func(a, b election.Peer) int {
		return cmp.Compare(weight(b), weight(a))
	})
}

// Sharding: each of 64 shards has a Lease of its own, and four replicas stand for
// all of them. Most replicas lead about a quarter. When one leaves, the others take
// over its shards and keep their own.
func Example_shards() {
	const shards = 64
	server := apitest.New(apitest.Options{})
	clientset := server.Client(apitest.User{}) // in a program kubernetes.NewForConfig
	replicas := []string{"agent-0", "agent-1", "agent-2", "agent-3"}

	var mu sync.Mutex
	leads := map[string]string{} // the replica by shard
	count := func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		n := map[string]int{}
		for _, replica := range leads {
			n[replica]++
		}
		return n
	}
	// await returns when every shard is led by the best of the replicas.
	await := func(replicas []string) {
		for settled := 0; settled < shards; time.Sleep(10 * time.Millisecond) {
			settled = 0
			mu.Lock()
			for shard, replica := range leads {
				best := replicas[0]
				for _, other := range replicas[1:] {
					if election.Compare(byWeight(shard), election.Peer{Identity: other}, election.Peer{Identity: best}, "") < 0 {
						best = other
					}
				}
				if best == replica {
					settled++
				}
			}
			mu.Unlock()
		}
	}

	var running sync.WaitGroup
	stops := map[string]context.CancelFunc{}
	for _, replica := range replicas {
		ctx, stop := context.WithCancel(context.Background())
		stops[replica] = stop
		watch, err := election.NewSharedWatch(clientset.CoordinationV1(), "default") // one for 64 shards
		if err != nil {
			fmt.Println(err)
			return
		}
		for i := range shards {
			shard := fmt.Sprintf("shard-%02d", i)
			candidate, err := election.New(election.Config{
				Client:            clientset.CoordinationV1(),
				Lease:             types.NamespacedName{Namespace: "default", Name: shard},
				Self:              election.Peer{Identity: replica},
				ExclusiveIdentity: true, // as in a StatefulSet
				Strategy:          byWeight(shard),
				Watch:             watch,
				Timing:            election.Timing{MinTenure: 100 * time.Millisecond},
				Lead: func(ctx context.Context, _ election.Term) error {
					mu.Lock()
					leads[shard] = replica
					mu.Unlock()
					<-ctx.Done()
					return nil
				},
			})
			if err != nil {
				fmt.Println(err)
				return
			}
			running.Go(func() {
				if err := candidate.Run(ctx); err != nil {
					fmt.Println(err)
				}
			})
		}
	}
	await(replicas)
	fmt.Println("four replicas: ", count())
	stops["agent-3"]()
	await(replicas[:3])
	fmt.Println("three replicas:", count())
	for _, stop := range stops {
		stop()
	}
	running.Wait()
	// Output:
	// four replicas:  map[agent-0:19 agent-1:16 agent-2:14 agent-3:15]
	// three replicas: map[agent-0:24 agent-1:21 agent-2:19]
}

// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"k8s.io/apimachinery/pkg/runtime"
)

var watchCases = []scenario{
	{"watch", func(c *C) {
		c.namespace()
		a := c.post(configMapsPath, configMap("a", object{"k": "0"}), 201)
		all := c.watch(req{Path: configMapsPath})
		defer all.stop()
		all.expect("ADDED")
		any := c.watch(req{Path: configMapsPath, Query: "resourceVersion=0&allowWatchBookmarks=true"})
		defer any.stop()
		any.expect("ADDED", "BOOKMARK") // the end of the initial events, without a request for it
		since := c.watch(req{Path: configMapsPath, Query: "resourceVersion=" + a.rv()})
		defer since.stop()
		c.quiet("POST", configMapsPath, configMap("b", nil), 201)
		c.patch(configMapsPath+"/a", mergePatch, object{"data": object{"k": "1"}}, 200)
		c.patch(configMapsPath+"/a", mergePatch, object{"data": object{"k": "1"}}, 200) // no change, no event
		c.delete(configMapsPath+"/a", nil, 200)
		for _, w := range []*stream{all, any, since} {
			w.expect("ADDED", "MODIFIED", "DELETED")
			w.silent()
		}
		replay := c.watch(req{Path: configMapsPath, Query: "resourceVersion=" + a.rv()})
		defer replay.stop()
		replay.expect("ADDED", "MODIFIED", "DELETED")
	}},
	{"watch-selectors", func(c *C) {
		c.namespace()
		c.quiet("POST", configMapsPath, object{"metadata": object{"name": "a", "labels": object{"l": "x"}}}, 201)
		c.quiet("POST", configMapsPath, object{"metadata": object{"name": "b", "labels": object{"l": "y"}}}, 201)
		list := c.do(req{Path: configMapsPath, quiet: true})
		x := c.watch(req{Path: configMapsPath, Query: "labelSelector=l=x&resourceVersion=" + list.rv()})
		defer x.stop()
		one := c.watch(req{Path: configMapsPath, Query: "fieldSelector=metadata.name=b&resourceVersion=" + list.rv()})
		defer one.stop()
		label := func(name, value string) {
			c.patch(configMapsPath+"/"+name, mergePatch, object{"metadata": object{"labels": object{"l": value}}}, 200)
		}
		label("b", "x") // enters the selection
		x.expect("ADDED")
		one.expect("MODIFIED")
		label("a", "z") // leaves the selection
		x.expect("DELETED")
		c.patch(configMapsPath+"/b", mergePatch, object{"data": object{"k": "v"}}, 200)
		x.expect("MODIFIED")
		one.expect("MODIFIED")
		label("a", "zz") // outside the selection
		c.quiet("DELETE", configMapsPath+"/a", nil, 200)
		c.quiet("DELETE", configMapsPath+"/b", nil, 200)
		x.expect("DELETED")
		one.expect("DELETED")
		x.silent()
		one.silent()
		// The path of a single object does not support a watch.
		c.quiet("POST", configMapsPath, configMap("single", nil), 201)
		c.do(req{Path: configMapsPath + "/single", Query: "watch=true", Code: 200})
	}},
	{"watch-versions", func(c *C) {
		c.namespace()
		before := c.post(configMapsPath, configMap("before", nil), 201)
		c.patch(configMapsPath+"/before", mergePatch, object{"data": object{"k": "v"}}, 200)
		c.server.Forget()
		old := c.watch(req{Path: configMapsPath, Query: "resourceVersion=" + before.rv()})
		old.expect("ERROR") // 410 Gone as an event
		old.ended()
		old.stop()
		proto := c.watch(req{Path: configMapsPath, Query: "resourceVersion=" + before.rv(), Accept: runtime.ContentTypeProtobuf})
		proto.expect("ERROR")
		proto.stop()
		c.get(configMapsPath+"/before", 200)
		now := c.do(req{Path: configMapsPath, quiet: true, Code: 200})
		fresh := c.watch(req{Path: configMapsPath, Query: "resourceVersion=" + now.rv()})
		c.quiet("DELETE", configMapsPath+"/before", nil, 200)
		fresh.expect("DELETED")
		fresh.stop()
		c.do(req{Path: configMapsPath, Query: "watch=true&resourceVersion=nonsense"})
		future := c.watch(req{Path: configMapsPath, Query: "resourceVersion=999999999"})
		c.quiet("POST", configMapsPath, configMap("a", nil), 201)
		future.silent()
		future.stop()
		short := c.watch(req{Path: configMapsPath, Query: "timeoutSeconds=1"})
		short.expect("ADDED")
		short.ended()
		short.stop()
		c.do(req{Path: configMapsPath, Query: "watch=true&fieldSelector=spec.nonsense=1", Code: 400})
	}},
	{"watch-list", func(c *C) {
		c.namespace()
		c.quiet("POST", configMapsPath, configMap("a", nil), 201)
		c.quiet("POST", configMapsPath, configMap("b", nil), 201)
		const initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
		for _, rv := range []string{"", "&resourceVersion=", "&resourceVersion=0"} {
			w := c.watch(req{Path: configMapsPath, Query: initial + rv})
			w.expect("ADDED", "ADDED")
			mark := w.expect("BOOKMARK")
			if str(mark, "metadata", "annotations", "k8s.io/initial-events-end") != "true" {
				c.Errorf("no end of the initial events: %v", mark)
			}
			c.quiet("POST", configMapsPath, configMap("later", nil), 201)
			w.expect("ADDED")
			c.quiet("DELETE", configMapsPath+"/later", nil, 200)
			w.expect("DELETED")
			w.stop()
		}
		some := c.watch(req{Path: configMapsPath, Query: initial + "&fieldSelector=metadata.name=b"})
		defer some.stop()
		some.expect("ADDED", "BOOKMARK")
		none := c.watch(req{Path: configMapsPath, Query: initial + "&fieldSelector=metadata.name=absent"})
		defer none.stop()
		none.expect("BOOKMARK")
		quiet := c.watch(req{Path: configMapsPath, Query: "sendInitialEvents=false&resourceVersionMatch=NotOlderThan"})
		defer quiet.stop()
		quiet.silent()
		c.do(req{Path: configMapsPath, Query: "watch=true&sendInitialEvents=true", Code: 422})
		c.do(req{Path: configMapsPath, Query: "watch=true&sendInitialEvents=true&resourceVersionMatch=Exact", Code: 422})
		c.do(req{Path: configMapsPath, Query: "watch=true&resourceVersionMatch=NotOlderThan", Code: 422})
	}},
}

// encodingCases check content types.
var encodingCases = []scenario{
	{"protobuf", func(c *C) {
		c.namespace()
		const proto = runtime.ContentTypeProtobuf
		a := c.post(configMapsPath, configMap("a", object{"k": "v"}), 201)
		c.do(req{Path: configMapsPath + "/a", Accept: proto, Code: 200})
		c.do(req{Path: configMapsPath, Accept: proto, Code: 200})
		c.do(req{Path: configMapsPath + "/absent", Accept: proto, Code: 404})
		c.do(req{Path: configMapsPath + "/a", Accept: "text/csv," + proto + ",application/json", Code: 200})
		w := c.watch(req{Path: configMapsPath, Query: "resourceVersion=" + a.rv() + "&allowWatchBookmarks=true", Accept: proto + ",application/json"})
		defer w.stop()
		c.do(req{Method: "PATCH", Path: configMapsPath + "/a", Type: mergePatch, Accept: proto, Body: object{"data": object{"k": "w"}}, Code: 200})
		w.expect("MODIFIED")
		c.do(req{Method: "DELETE", Path: configMapsPath + "/a", Accept: proto, Code: 200})
		w.expect("DELETED")
		initial := c.watch(req{Path: configMapsPath, Accept: proto, Query: "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"})
		defer initial.stop()
		initial.expect("BOOKMARK")
	}},
	{"partial-metadata", func(c *C) {
		c.namespace()
		c.quiet("POST", configMapsPath, object{"metadata": object{"name": "a", "labels": object{"l": "x"}}, "data": object{"k": "v"}}, 201)
		const one = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
		const many = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
		c.do(req{Path: configMapsPath + "/a", Accept: one, Code: 200})
		c.do(req{Path: configMapsPath, Accept: many, Code: 200})
		c.do(req{Path: configMapsPath, Accept: "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", Code: 200})
		w := c.watch(req{Path: configMapsPath, Accept: one})
		defer w.stop()
		w.expect("ADDED")
		c.quiet("DELETE", configMapsPath+"/a", nil, 200)
		w.expect("DELETED")
		c.do(req{Path: configMapsPath, Accept: "application/json;as=Nonsense;g=meta.k8s.io;v=v1,application/json", Code: 200})
	}},
}

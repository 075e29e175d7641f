// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import "strings"

// CustomResourceSchemas is the name of the case that needs the schemas of custom resources.
const CustomResourceSchemas = "custom-resource-schemas"

const boltsPath = "/apis/schemas.example.com/v1/namespaces/{NS}/bolts"

// boltDefinition is a CustomResourceDefinition. Its beta version has another default and
// limit, and lacks a field.
func boltDefinition() object {
	typed := func(typ string, more object) object {
		more["type"] = typ
		return more
	}
	version := func(name string, storage bool, thread string, longest int) object {
		return object{"name": name, "served": true, "storage": storage, "subresources": object{"status": object{}},
			"schema": object{"openAPIV3Schema": typed("object", object{"properties": object{
				"spec": typed("object", object{
					"required": []any{"length"},
					"properties": object{
						"length":   typed("integer", object{"minimum": 1, "maximum": longest}),
						"thread":   typed("string", object{"enum": []any{"coarse", "fine"}, "default": thread}),
						"code":     typed("string", object{"pattern": "^[A-Z]+$", "maxLength": 3}),
						"nickname": typed("string", object{"nullable": true}),
						"holes":    typed("array", object{"maxItems": 2, "x-kubernetes-list-type": "set", "items": typed("integer", object{})}),
						"tags":     typed("array", object{"items": typed("string", object{})}),
						"head":     typed("object", object{"default": object{}, "properties": object{"shape": typed("string", object{"default": "hex"})}}),
						"free":     typed("object", object{"x-kubernetes-preserve-unknown-fields": true}),
						"template": typed("object", object{"x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
						"labels":   typed("object", object{"additionalProperties": typed("string", object{})}),
					},
					"x-kubernetes-validations": []any{
						object{"rule": "!has(self.code) || self.length > 1", "message": "a bolt with a code must be longer"},
						object{"rule": "self.thread == oldSelf.thread", "message": "the thread is immutable"},
					},
				}),
				"status": typed("object", object{"default": object{}, "properties": object{
					"phase":    typed("string", object{"enum": []any{"New", "Used"}, "default": "New"}),
					"turns":    typed("integer", object{"minimum": 0}),
					"template": typed("object", object{"x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
				}}),
			}})}}
	}
	v1, beta := version("v1", true, "coarse", 100), version("v1beta1", false, "fine", 50)
	delete(in(beta, "schema", "openAPIV3Schema", "properties", "spec", "properties"), "labels")
	return object{"metadata": object{"name": "bolts.schemas.example.com"}, "spec": object{
		"group": "schemas.example.com", "scope": "Namespaced", "names": object{"plural": "bolts", "kind": "Bolt"},
		"versions": []any{v1, beta},
	}}
}

// schemaCases check the schemas of custom resources.
var schemaCases = []scenario{
	{CustomResourceSchemas, func(c *C) {
		c.namespace()
		bad := boltDefinition()
		props := in(in(bad, "spec")["versions"].([]any)[0].(object), "schema", "openAPIV3Schema", "properties")
		delete(in(props, "spec", "properties", "holes"), "type")
		c.post(definitions, bad, 422) // not structural
		c.quiet("POST", definitions, boltDefinition(), 201)
		c.settleKind(boltsPath)

		bolt := func(name string, spec object) object {
			return object{"apiVersion": "schemas.example.com/v1", "kind": "Bolt", "metadata": object{"name": name}, "spec": spec}
		}
		post := func(query string, spec object, code int) *answer {
			c.Helper()
			c.note("%v", spec)
			return c.do(req{Method: "POST", Path: boltsPath, Query: query, Body: bolt("b", spec), Code: code})
		}
		const dry = "dryRun=All"
		post(dry, object{}, 422)
		post(dry, object{"length": "long"}, 422)
		post(dry, object{"length": 1.5}, 422)
		post(dry, object{"length": 0}, 422)
		post(dry, object{"length": 101}, 422)
		post(dry, object{"length": 2, "thread": "none"}, 422)
		post(dry, object{"length": 2, "code": "a"}, 422)
		post(dry, object{"length": 2, "code": "ABCD"}, 422)
		post(dry, object{"length": 1, "code": "A"}, 422) // a rule
		post(dry, object{"length": 2, "holes": []any{1, 1}}, 422)
		post(dry, object{"length": 2, "holes": []any{1, 2, 3}}, 422)
		post(dry, object{"length": 2, "labels": object{"l": 1}}, 422)
		post(dry, object{"length": 2, "head": nil, "nickname": nil, "code": nil}, 201)
		post(dry, object{"length": 2, "free": object{"any": object{"thing": 1}}, "template": object{"apiVersion": "v1", "kind": "X", "metadata": object{"name": "x", "other": 1}, "y": 1}}, 201)
		post(dry, object{"length": 2, "template": object{"kind": "X"}}, 422)
		unknown := object{"length": 2, "color": "red", "head": object{"size": 1}}
		post(dry, unknown, 201)
		post(dry+"&fieldValidation=Ignore", unknown, 201)
		post(dry+"&fieldValidation=Strict", unknown, 400)

		for length := 50; length <= 51; length++ {
			beta := bolt("b", object{"length": length, "labels": object{}})
			beta["apiVersion"] = "schemas.example.com/v1beta1"
			c.do(req{Method: "POST", Path: strings.Replace(boltsPath, "/v1/", "/v1beta1/", 1), Query: dry, Body: beta})
		}

		withStatus := bolt("b", object{"length": 2, "tags": []any{"t", "t"}})
		withStatus["status"] = object{"phase": "Used"}
		c.post(boltsPath, withStatus, 201) // the status is the default
		path := boltsPath + "/b"
		now := c.get(path, 200)
		c.get(strings.Replace(path, "/v1/", "/v1beta1/", 1), 200)
		c.put(path, now.with(func(m object) { in(m, "spec")["length"] = 3; in(m, "spec")["extra"] = 1; delete(in(m, "spec"), "head") }), 200)
		c.put(path, c.do(req{Path: path, quiet: true}).with(func(m object) { in(m, "spec")["length"] = 0 }), 422)
		c.patch(path, mergePatch, object{"spec": object{"length": "x"}}, 422)
		c.patch(path, mergePatch, object{"spec": object{"length": nil}}, 422)
		c.patch(path, mergePatch, object{"spec": object{"thread": "fine"}}, 422) // a transition rule
		c.patch(path, mergePatch, object{"spec": object{"extra": 1}}, 200)
		c.do(req{Method: "PATCH", Path: path, Type: mergePatch, Query: "fieldValidation=Strict", Body: object{"spec": object{"extra": 1}}, Code: 422, quiet: true}) // the message has the object
		c.patch(path, jsonPatch, []any{object{"op": "add", "path": "/spec/holes", "value": []any{1, 2, 3}}}, 422)
		c.patch(path+"/status", mergePatch, object{"spec": object{"length": 0}, "status": object{"phase": "Used", "extra": 1}}, 200)
		c.patch(path+"/status", mergePatch, object{"status": object{"phase": "Gone"}}, 422)
		c.patch(path+"/status", mergePatch, object{"status": object{"turns": -1}}, 422)
		c.patch(path+"/status", mergePatch, object{"status": nil}, 200) // the default again
		embedded := func(name string) object {
			return object{"apiVersion": "v1", "kind": "X", "metadata": object{"name": name}}
		}
		c.patch(path, mergePatch, object{"spec": object{"template": embedded("a/b")}}, 422)
		c.patch(path+"/status", mergePatch, object{"status": object{"turns": 1, "template": embedded("a/b")}}, 200) // not validated
		c.patch(path+"/status", mergePatch, object{"status": object{"template": nil}}, 200)
		c.apply(path, "applier", "", bolt("b", object{"length": 4}), 409)
		c.do(req{Method: "PATCH", Path: path, Type: applyPatch, Query: "fieldManager=applier&force=true", Body: bolt("b", object{"length": 4}), Code: 200})
		c.do(req{Method: "PATCH", Path: path, Type: applyPatch, Query: "fieldManager=applier&force=true", Body: bolt("b", object{"length": 0}), Code: 422})
		c.do(req{Method: "PATCH", Path: path, Type: applyPatch, Query: "fieldManager=applier", Body: bolt("b", object{"length": 4, "extra": 1}), Code: 500})
		c.do(req{Method: "PATCH", Path: boltsPath + "/applied", Type: applyPatch, Query: "fieldManager=applier", Body: bolt("applied", object{"length": 5}), Code: 201})

		// A schema that grows stricter: a value that an update does not change stays.
		stricter := c.do(req{Path: definitions + "/bolts.schemas.example.com", Code: 200, quiet: true}).Body
		for _, v := range in(stricter, "spec")["versions"].([]any) {
			props := in(v.(object), "schema", "openAPIV3Schema", "properties")
			in(props, "spec", "properties", "length")["minimum"] = 10
			in(props, "spec", "properties", "tags")["x-kubernetes-list-type"] = "set"
			in(props, "status", "properties", "turns")["minimum"] = 2
		}
		c.quiet("PUT", definitions+"/bolts.schemas.example.com", stricter, 200)
		c.settle("the stricter schema", req{Method: "POST", Path: boltsPath, Query: dry, Body: bolt("c", object{"length": 9})}, func(a *answer) bool { return a.Code == 422 })
		c.patch(path, mergePatch, object{"metadata": object{"labels": object{"l": "v"}}}, 200)
		c.patch(path, mergePatch, object{"spec": object{"length": 9}}, 422)
		c.patch(path+"/status", mergePatch, object{"status": object{"phase": "Used"}}, 200)
		c.patch(path+"/status", mergePatch, object{"status": object{"turns": 0}}, 422)
		c.quiet("DELETE", definitions+"/bolts.schemas.example.com", nil, 200)
	}},
}

// Command argo-lua runs a script as Argo CD 3.2 does: the same interpreter with the libraries base, package and table, `require("os")` with
// time and date alone, one second, and the object as the global `obj`. It reads {"script": …, "obj": …} and prints what is returned as JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	lua "github.com/yuin/gopher-lua"
)

type request struct {
	Script string
	Obj    any
}

func main() {
	answer, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(answer)
}

func run() (string, error) {
	var asked request
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		return "", fmt.Errorf("what is asked is no JSON: %w", err)
	}
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	libraries := []struct {
		name string
		open lua.LGFunction
	}{
		{lua.LoadLibName, lua.OpenPackage},
		{lua.BaseLibName, lua.OpenBase},
		{lua.TabLibName, lua.OpenTable},
	}
	for _, library := range libraries {
		open := lua.P{Fn: state.NewFunction(library.open), NRet: 0, Protect: true}
		if err := state.CallByParam(open, lua.LString(library.name)); err != nil {
			return "", err
		}
	}
	state.PreloadModule(lua.OsLibName, safeOs)
	within, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	state.SetContext(within)
	state.SetGlobal("actionParams", state.NewTable())
	state.SetGlobal("obj", decode(state, asked.Obj))
	if err := state.DoString(asked.Script); err != nil {
		return "", err
	}
	encoded, err := json.Marshal(encode(state.Get(-1)))
	return string(encoded), err
}

// safeOs is what Argo CD leaves of the library: no files, no processes. There is no global of its name.
func safeOs(state *lua.LState) int {
	functions := map[string]lua.LGFunction{
		"time": func(state *lua.LState) int {
			state.Push(lua.LNumber(time.Now().Unix()))
			return 1
		},
		"date": func(state *lua.LState) int {
			state.Push(lua.LString(time.Now().UTC().Format(time.RFC3339)))
			return 1
		},
	}
	state.Push(state.SetFuncs(state.NewTable(), functions))
	return 1
}

func decode(state *lua.LState, value any) lua.LValue {
	switch value := value.(type) {
	case bool:
		return lua.LBool(value)
	case float64:
		return lua.LNumber(value)
	case string:
		return lua.LString(value)
	case []any:
		table := state.NewTable()
		for _, item := range value {
			table.Append(decode(state, item))
		}
		return table
	case map[string]any:
		table := state.NewTable()
		for key, item := range value {
			table.RawSetString(key, decode(state, item))
		}
		return table
	}
	return lua.LNil
}

func encode(value lua.LValue) any {
	switch value := value.(type) {
	case lua.LBool:
		return bool(value)
	case lua.LNumber:
		return float64(value)
	case lua.LString:
		return string(value)
	case *lua.LTable:
		if value.Len() > 0 {
			list := []any{}
			for index := 1; index <= value.Len(); index++ {
				list = append(list, encode(value.RawGetInt(index)))
			}
			return list
		}
		fields := map[string]any{}
		value.ForEach(func(key, item lua.LValue) { fields[key.String()] = encode(item) })
		return fields
	}
	return nil
}

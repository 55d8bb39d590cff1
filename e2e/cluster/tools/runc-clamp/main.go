// Command runc-clamp is runc for a machine whose root lacks a capability.
//
// A sandboxed root may miss, say, CAP_SYS_RESOURCE. A privileged container of
// an old Docker asks for every capability that the kernel knows, and runc then
// fails with "unable to apply caps". runc-clamp lowers what a container asks
// for to what its caller has (capabilities, oom_score_adj, hard rlimits), then
// becomes the real runc. It can't give anything that the caller lacks.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

var capNames = strings.Fields(`CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP
LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO
SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE
AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON
BPF CHECKPOINT_RESTORE`)

func main() {
	args := os.Args[1:]
	file, isProcess := "", false
	for i, a := range args {
		switch a {
		case "create", "run":
			file = "config.json"
			if b := value(args[i:], "--bundle", "-b"); b != "" {
				file = filepath.Join(b, "config.json")
			}
		case "exec":
			file, isProcess = value(args[i:], "--process", "-p"), true
		default:
			continue
		}
		break
	}
	if file != "" {
		if err := clamp(file, isProcess); err != nil {
			fmt.Fprintln(os.Stderr, "runc-clamp:", err)
			os.Exit(1)
		}
	}
	runc := os.Getenv("CLUSTER_RUNC")
	if runc == "" {
		for _, d := range []string{"/usr/local/sbin", "/usr/sbin", "/usr/bin"} {
			if p := filepath.Join(d, "runc"); exists(p) {
				runc = p
				break
			}
		}
	}
	if runc == "" {
		runc, _ = exec.LookPath("runc")
	}
	err := syscall.Exec(runc, append([]string{"runc"}, args...), os.Environ())
	fmt.Fprintln(os.Stderr, "runc-clamp:", runc, err)
	os.Exit(1)
}

func exists(p string) bool { _, err := os.Stat(p); return err == nil }

func value(args []string, names ...string) string {
	for i, a := range args {
		for _, n := range names {
			if a == n && i+1 < len(args) {
				return args[i+1]
			}
			if v, ok := strings.CutPrefix(a, n+"="); ok {
				return v
			}
		}
	}
	return ""
}

// bounding is the set of capabilities that this process may pass on.
func bounding() (map[string]bool, error) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	have := map[string]bool{}
	for s := bufio.NewScanner(f); s.Scan(); {
		v, ok := strings.CutPrefix(s.Text(), "CapBnd:")
		if !ok {
			continue
		}
		bits, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
		if err != nil {
			return nil, err
		}
		for i, n := range capNames {
			have["CAP_"+n] = bits>>i&1 == 1
		}
	}
	return have, nil
}

func clamp(file string, isProcess bool) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var doc map[string]any
	// Numbers stay as they are written: a device's or limit's is 64 bits wide.
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	if err := d.Decode(&doc); err != nil {
		return err
	}
	proc := doc
	if !isProcess {
		proc, _ = doc["process"].(map[string]any)
	}
	if proc == nil {
		return nil
	}
	have, err := bounding()
	if err != nil {
		return err
	}
	if sets, ok := proc["capabilities"].(map[string]any); ok {
		for name, v := range sets {
			in, _ := v.([]any)
			out := []any{}
			for _, c := range in {
				if s, _ := c.(string); have[s] {
					out = append(out, c)
				}
			}
			sets[name] = out
		}
	}
	if !have["CAP_SYS_RESOURCE"] {
		if n, ok := proc["oomScoreAdj"].(json.Number); ok {
			own, _ := os.ReadFile("/proc/self/oom_score_adj")
			min, _ := strconv.Atoi(strings.TrimSpace(string(own)))
			if v, _ := n.Int64(); int(v) < min {
				proc["oomScoreAdj"] = min
			}
		}
		// Only an equal or lower hard limit can be set.
		delete(proc, "rlimits")
	}
	out, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, out, info.Mode())
}

package manifest

import (
	"slices"

	"github.com/droverproject/drover/pkg/strictjson"
)

// TenantIDDefault is NCAE's first tenant (facts/ncae.md B2: "X-Tenant-Id (default 1)").
const TenantIDDefault = 1

// TenantIDMax keeps the number exact in JSON.
const TenantIDMax = 1 << 31

// ExtAPI makes a request what NCAE sends to a module (facts/ncae.md B3): a POST with extra_vars, in which the module finds
// what is to be done, the ids by which it answers, and where.
//
// As http it is an ExtApiPhase (seed 000): any 2xx says that the module is at it, and the phase waits for
// PATCH {ncaeBaseUrl}/api/automation/v1/phase-instance/{id}, which may come before that answer. As poll it is a PollingPhase:
// the request is sent every interval, and answered with polling, deployed or error.
type ExtAPI struct {
	BaseURL  string `json:"ncaeBaseUrl" need:"true" doc:"Where the module calls back: the address of Drover's gateway, as the module reaches it. A template."`
	TenantID int    `json:"tenantId" alias:"tenant_id" doc:"ncae_tenant_id, and X-Tenant-Id. Default: 1."`
	Data     string `json:"data" doc:"What the module is given as data: JSON, an object. A template. Default: the spec."`
	Devices  string `json:"devices" doc:"What the module is given as devices: JSON, a list. A template. Default: none."`
	Limit    string `json:"limit" doc:"What the module is given as limit. A template. Default: null."`
}

// check judges the configuration of the executor at path; own are the fields of the executor that are given and have no
// meaning beside extApi.
func (e *ExtAPI) check(c *checks, path string, own []string) {
	slices.Sort(own)
	for _, name := range own {
		c.fail(path+"."+name, "is not for a request with extApi, which says it itself")
	}
	at := strictjson.Field(path, "extApi")
	c.url(strictjson.Field(at, "ncaeBaseUrl"), e.BaseURL)
	c.template(strictjson.Field(at, "data"), e.Data, TemplateBytesMax)
	c.template(strictjson.Field(at, "devices"), e.Devices, TemplateBytesMax)
	c.template(strictjson.Field(at, "limit"), e.Limit, ArgumentBytesMax)
	switch {
	case e.TenantID == 0:
		e.TenantID = TenantIDDefault
	case e.TenantID < 0 || e.TenantID > TenantIDMax:
		c.fail(strictjson.Field(at, "tenantId"), "is not 1 to %d", TenantIDMax)
	}
}

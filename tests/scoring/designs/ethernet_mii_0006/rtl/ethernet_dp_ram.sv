module ethernet_dp_ram #(
    parameter WIDTH = 32,
    parameter ADDR_W = 10
) (
    input  logic              clk0_in,
    input  logic [ADDR_W-1:0] addr0_in,
    input  logic [WIDTH-1:0]  data0_in,
    input  logic              wr0_in,
    input  logic [ADDR_W-1:0] addr1_in,
    input  logic [WIDTH-1:0]  data1_in,
    input  logic              wr1_in,
    output logic [WIDTH-1:0]  data0_out,
    output logic [WIDTH-1:0]  data1_out
);
    logic [WIDTH-1:0] mem [0:2**ADDR_W-1];

    always_ff @(posedge clk0_in) begin
        data0_out <= mem[addr0_in];
        data1_out <= mem[addr1_in];
        if (wr1_in) mem[addr1_in] <= data1_in;
        if (wr0_in) mem[addr0_in] <= data0_in;
    end
endmodule

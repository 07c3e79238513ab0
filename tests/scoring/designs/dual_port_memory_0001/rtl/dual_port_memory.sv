module dual_port_memory #(
    parameter DATA_WIDTH = 4,
    parameter ADDR_WIDTH = 5
) (
    input                       clk,
    input                       we_a,
    input                       we_b,
    input      [ADDR_WIDTH-1:0] addr_a,
    input      [ADDR_WIDTH-1:0] addr_b,
    input      [DATA_WIDTH-1:0] data_in_a,
    input      [DATA_WIDTH-1:0] data_in_b,
    output reg [DATA_WIDTH-1:0] data_out_a,
    output reg [DATA_WIDTH-1:0] data_out_b
);
    reg [DATA_WIDTH-1:0] words [0:(1 << ADDR_WIDTH)-1];

    always @(posedge clk) begin
        if (we_a) words[addr_a] <= data_in_a;
        if (we_b) words[addr_b] <= data_in_b;
        data_out_a <= words[addr_a];
        data_out_b <= words[addr_b];
    end
endmodule

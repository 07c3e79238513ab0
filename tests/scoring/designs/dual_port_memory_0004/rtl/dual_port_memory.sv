module dual_port_memory #(
    parameter DATA_WIDTH = 4,
    parameter ECC_WIDTH = 3,
    parameter ADDR_WIDTH = 5,
    parameter MEM_DEPTH = (1 << ADDR_WIDTH)
) (
    input clk,
    input rst_n,
    input we,
    input [ADDR_WIDTH-1:0] addr_a,
    input [ADDR_WIDTH-1:0] addr_b,
    input [DATA_WIDTH-1:0] data_in,
    output reg [DATA_WIDTH-1:0] data_out,
    output reg ecc_error
);
    reg [DATA_WIDTH-1:0] ram_data [MEM_DEPTH-1:0];
    reg [ECC_WIDTH-1:0] ram_ecc [MEM_DEPTH-1:0];

    function [ECC_WIDTH-1:0] parity(input [DATA_WIDTH-1:0] d);
        parity = {d[1] ^ d[2] ^ d[3], d[0] ^ d[2] ^ d[3], d[0] ^ d[1] ^ d[3]};
    endfunction

    always @(posedge clk) begin
        if (we) begin
            ram_data[addr_a] <= data_in;
            ram_ecc[addr_a] <= parity(data_in);
        end
        if (!rst_n) begin
            data_out <= 0;
            ecc_error <= 0;
        end else begin
            data_out <= ram_data[addr_b];
            ecc_error <= ram_ecc[addr_b] != parity(ram_data[addr_b]);
        end
    end
endmodule

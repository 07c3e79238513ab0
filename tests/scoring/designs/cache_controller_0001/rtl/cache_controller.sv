// Direct-mapped, 32 words, write-through.
module cache_controller (
    input  logic        clk,
    input  logic        reset,
    input  logic [9:0]  address,
    input  logic [31:0] write_data,
    input  logic        read,
    input  logic        write,
    output logic [31:0] read_data,
    output logic        hit,
    output logic        miss,
    output logic [31:0] mem_write_data,
    input  logic [31:0] mem_read_data,
    input  logic        mem_ready,
    output logic        mem_write,
    output logic [9:0]  mem_address
);
    logic [31:0] words [0:31];
    logic [4:0]  tags  [0:31];
    logic [31:0] valid;
    logic        waiting;
    logic [9:0]  wanted;

    wire [4:0] index = address[4:0];

    assign hit  = valid[index] && tags[index] == address[9:5];
    assign miss = !hit;

    always_ff @(posedge clk or posedge reset) begin
        if (reset) begin
            valid <= 0;
            waiting <= 0;
            wanted <= 0;
            read_data <= 0;
            mem_write <= 0;
            mem_write_data <= 0;
            mem_address <= 0;
        end else begin
            mem_write <= 0;
            if (waiting) begin
                if (mem_ready) begin
                    waiting <= 0;
                    words[wanted[4:0]] <= mem_read_data;
                    tags[wanted[4:0]] <= wanted[9:5];
                    valid[wanted[4:0]] <= 1;
                    read_data <= mem_read_data;
                end
            end else if (write) begin
                mem_write <= 1;
                mem_write_data <= write_data;
                mem_address <= address;
                if (hit) words[index] <= write_data;
            end else if (read) begin
                if (hit) read_data <= words[index];
                else begin
                    waiting <= 1;
                    wanted <= address;
                    mem_address <= address;
                end
            end
        end
    end
endmodule
